//! As much of an ELF file as a diagnosis needs (elf(5)): for which machine it is, and which loader it asks for.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Most program headers that are looked at: real programs have about a dozen, and this is under 4 KiB of them.
const MOST_HEADERS: u16 = 64;
/// The longest path that the kernel takes for a loader (PATH_MAX).
const LONGEST_LOADER: u64 = 4096;

const PT_INTERP: u32 = 3;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;

/// What a program's headers say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Elf {
    pub(super) machine: Machine,
    /// The dynamic loader (PT_INTERP), none for a static program.
    pub(super) loader: Option<PathBuf>,
    /// Whether it is of a kind that can be started, and no object file or core dump.
    pub(super) is_program: bool,
}

/// The instruction set, width and byte order that a program is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machine {
    number: u16,
    bits: u8,
    big_endian: bool,
}

impl Machine {
    /// The one that we were built for, on which we therefore run.
    pub const THIS: Self = Self {
        number: if cfg!(target_arch = "aarch64") { 183 } else { 62 },
        bits: 64,
        big_endian: cfg!(target_endian = "big"),
    };
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match (self.number, self.bits) {
            (3, _) => "32-bit x86",
            (8, _) => "MIPS",
            (20, _) => "32-bit PowerPC",
            (21, _) if self.big_endian => "ppc64",
            (21, _) => "ppc64le",
            (22, _) => "s390x",
            (40, _) => "32-bit ARM",
            (62, 64) => "x86-64",
            (62, _) => "x32",
            (183, 64) => "aarch64",
            (183, _) => "32-bit aarch64",
            (243, 64) => "riscv64",
            (243, _) => "riscv32",
            (258, _) => "loongarch64",
            (number, bits) => return write!(f, "{bits}-bit machine {number}"),
        };
        f.write_str(name)
    }
}

/// Reads integers of the file's own byte order; none beyond the end.
#[derive(Clone, Copy)]
struct Fields<'a> {
    bytes: &'a [u8],
    big_endian: bool,
}

impl Fields<'_> {
    /// The unsigned integer of `len` bytes at `at`.
    fn get(self, at: usize, len: usize) -> Option<u64> {
        let field = self.bytes.get(at..at.checked_add(len)?)?;
        let push = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if self.big_endian { field.iter().fold(0, push) } else { field.iter().rev().fold(0, push) })
    }

    fn half(self, at: usize) -> Option<u16> {
        self.get(at, 2).map(|value| value as u16)
    }
}

impl Elf {
    /// Reads the headers; none if the file ends before they do, or if they make no sense.
    pub(super) fn read(file: &File) -> Option<Self> {
        let ident = bytes_at(file, 0, 16)?;
        let bits = match ident[4] {
            1 => 32,
            2 => 64,
            _ => return None,
        };
        let header = bytes_at(file, 0, if bits == 64 { 64 } else { 52 })?;
        let header = Fields { bytes: &header, big_endian: ident[5] == 2 };
        let machine = Machine { number: header.half(18)?, bits, big_endian: header.big_endian };
        let is_program = matches!(header.half(16)?, ET_EXEC | ET_DYN);
        Some(Self { machine, is_program, loader: if is_program { loader(file, header, bits)? } else { None } })
    }
}

/// The loader's path; the outer none stands for headers that are cut off.
fn loader(file: &File, header: Fields, bits: u8) -> Option<Option<PathBuf>> {
    let (table, entry_len, count) = match bits {
        64 => (header.get(32, 8)?, header.half(54)?, header.half(56)?),
        _ => (header.get(28, 4)?, header.half(42)?, header.half(44)?),
    };
    if entry_len != if bits == 64 { 56 } else { 32 } || count == 0 {
        return None;
    }
    let table = bytes_at(file, table, usize::from(entry_len) * usize::from(count.min(MOST_HEADERS)))?;
    for entry in table.chunks_exact(usize::from(entry_len)) {
        let entry = Fields { bytes: entry, big_endian: header.big_endian };
        if entry.get(0, 4)? == u64::from(PT_INTERP) {
            return path_of(file, entry, bits).map(Some);
        }
    }
    Some(None)
}

fn path_of(file: &File, entry: Fields, bits: u8) -> Option<PathBuf> {
    let (offset, len) = match bits {
        64 => (entry.get(8, 8)?, entry.get(32, 8)?),
        _ => (entry.get(4, 4)?, entry.get(16, 4)?),
    };
    if !(2..=LONGEST_LOADER).contains(&len) {
        return None;
    }
    let path = bytes_at(file, offset, len as usize)?;
    let path = path.split(|byte| *byte == 0).next()?;
    Some(OsStr::from_bytes(path).into())
}

/// Exactly that many bytes of the file, from that offset.
fn bytes_at(file: &File, offset: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

/// Makes small ELF files, for this and other tests.
#[cfg(test)]
pub(super) mod sample {
    pub(in super::super) const X86_64: u16 = 62;
    pub(in super::super) const AARCH64: u16 = 183;

    /// A 64-bit little-endian executable of a header and, with a loader, one PT_INTERP.
    pub(in super::super) fn elf64(machine: u16, loader: Option<&str>) -> Vec<u8> {
        let mut bytes = vec![0u8; 120];
        put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
        put(&mut bytes, 16, &2u16.to_le_bytes());
        put(&mut bytes, 18, &machine.to_le_bytes());
        put(&mut bytes, 20, &1u32.to_le_bytes());
        put(&mut bytes, 32, &64u64.to_le_bytes());
        put(&mut bytes, 52, &64u16.to_le_bytes());
        put(&mut bytes, 54, &56u16.to_le_bytes());
        put(&mut bytes, 56, &1u16.to_le_bytes());
        let Some(loader) = loader else { return bytes };
        put(&mut bytes, 64, &3u32.to_le_bytes());
        put(&mut bytes, 72, &120u64.to_le_bytes());
        put(&mut bytes, 96, &(loader.len() as u64 + 1).to_le_bytes());
        bytes.extend_from_slice(loader.as_bytes());
        bytes.push(0);
        bytes
    }

    /// A 32-bit ARM executable, as far as its first header goes.
    pub(in super::super) fn elf32_arm() -> Vec<u8> {
        let mut bytes = vec![0u8; 84];
        put(&mut bytes, 0, b"\x7fELF\x01\x01\x01");
        put(&mut bytes, 16, &2u16.to_le_bytes());
        put(&mut bytes, 18, &40u16.to_le_bytes());
        put(&mut bytes, 28, &52u32.to_le_bytes());
        put(&mut bytes, 42, &32u16.to_le_bytes());
        put(&mut bytes, 44, &1u16.to_le_bytes());
        bytes
    }

    fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
        bytes[at..at + field.len()].copy_from_slice(field);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(bytes: &[u8]) -> Option<Elf> {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(bytes).expect("room for it");
        Elf::read(&file)
    }

    #[test]
    fn machine_and_loader_are_read() {
        let elf = read(&sample::elf64(sample::AARCH64, Some("/lib/ld-linux-aarch64.so.1"))).expect("well-formed");
        assert_eq!(elf.machine.to_string(), "aarch64");
        assert_eq!(elf.loader, Some("/lib/ld-linux-aarch64.so.1".into()));
        let elf = read(&sample::elf64(sample::X86_64, None)).expect("well-formed");
        assert_eq!((elf.machine.to_string().as_str(), elf.loader), ("x86-64", None));
        assert_eq!(read(&sample::elf32_arm()).expect("well-formed").machine.to_string(), "32-bit ARM");
    }

    #[test]
    fn our_own_binary_is_for_this_machine() {
        let elf = Elf::read(&File::open("/proc/self/exe").expect("/proc")).expect("a program");
        assert!(elf.is_program);
        assert_eq!(elf.machine, Machine::THIS);
    }

    #[test]
    fn no_cut_and_no_wrong_byte_makes_it_panic() {
        let whole = sample::elf64(sample::X86_64, Some("/lib/ld.so"));
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len]), None, "cut at {len}");
        }
        for at in 4..120 {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut wrong = whole.clone();
                wrong[at] = byte;
                read(&wrong);
            }
        }
    }
}
