//! The first instructions of the process: block every signal before libc and Rust's runtime start.
//!
//! A signal that arrives while libc relocates itself would otherwise kill us (as another PID) or be thrown away by the
//! kernel (as PID 1, where a default action is no action). The linker is told by `build.rs` to enter here. The stub asks
//! `rt_sigprocmask(2)` to block all, keeps the mask that we were given for the child, and goes on to libc's `_start` with
//! the stack and the registers that the kernel set.
//!
//! The mask is all ones, by the raw call: the `sigfillset(3)` of glibc and musl leave out the signals they use themselves.

use crate::signals::SigSet;

/// The mask that the process was started with, as the stub found it. The child gets it back.
pub fn original_mask() -> SigSet {
    // SAFETY: the stub wrote the word once, before any Rust code ran; nothing writes it again.
    SigSet::from_bits(unsafe { sundown_original_mask })
}

unsafe extern "C" {
    static sundown_original_mask: u64;
}

// rdx holds the dynamic loader's finaliser, which `_start` hands on: it survives in r8, which the kernel preserves.
#[cfg(all(target_arch = "x86_64", not(test)))]
core::arch::global_asm!(
    ".globl sundown_entry",
    ".hidden sundown_entry",
    ".type sundown_entry, @function",
    "sundown_entry:",
    "mov r8, rdx",
    "mov eax, {rt_sigprocmask}",
    "xor edi, edi", // SIG_BLOCK
    "lea rsi, [rip + sundown_all_signals]",
    "lea rdx, [rip + sundown_original_mask]",
    "mov r10d, 8", // sizeof(the kernel's sigset_t)
    "syscall",
    "mov rdx, r8",
    "jmp _start",
    ".size sundown_entry, . - sundown_entry",
    rt_sigprocmask = const libc::SYS_rt_sigprocmask,
);

// x0 holds the dynamic loader's finaliser: it survives in x9, which the kernel preserves.
#[cfg(all(target_arch = "aarch64", not(test)))]
core::arch::global_asm!(
    ".globl sundown_entry",
    ".hidden sundown_entry",
    ".type sundown_entry, %function",
    "sundown_entry:",
    "mov x9, x0",
    "mov x8, #{rt_sigprocmask}",
    "mov x0, #0", // SIG_BLOCK
    "adrp x1, sundown_all_signals",
    "add x1, x1, :lo12:sundown_all_signals",
    "adrp x2, sundown_original_mask",
    "add x2, x2, :lo12:sundown_original_mask",
    "mov x3, #8", // sizeof(the kernel's sigset_t)
    "svc #0",
    "mov x0, x9",
    "b _start",
    ".size sundown_entry, . - sundown_entry",
    rt_sigprocmask = const libc::SYS_rt_sigprocmask,
);

// The unit tests run in Rust's harness, whose threads and children are to have the mask they were given.
#[cfg(all(target_arch = "x86_64", test))]
core::arch::global_asm!(".globl sundown_entry", ".hidden sundown_entry", "sundown_entry:", "jmp _start");
#[cfg(all(target_arch = "aarch64", test))]
core::arch::global_asm!(".globl sundown_entry", ".hidden sundown_entry", "sundown_entry:", "b _start");

core::arch::global_asm!(
    ".section .rodata.sundown_all_signals, \"a\"",
    ".p2align 3",
    "sundown_all_signals:",
    ".quad 0xffffffffffffffff",
    ".section .bss.sundown_original_mask, \"aw\", %nobits",
    ".p2align 3",
    ".globl sundown_original_mask",
    ".hidden sundown_original_mask",
    "sundown_original_mask:",
    ".zero 8",
    ".text",
);

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("sundown runs on Linux, x86_64 and aarch64: its entry stub is written for these");

/// The words of the command line. musl's start does not hand them to Rust's `std::env::args`.
///
/// # Safety
/// `argv` must point to `argc` strings that end in NUL and live as long as the process.
pub unsafe fn args(argc: libc::c_int, argv: *const *const libc::c_char) -> Vec<std::ffi::OsString> {
    use std::os::unix::ffi::OsStringExt;
    (0..argc as usize)
        .map(|at| {
            // SAFETY: the caller vouches for argc pointers.
            let word = unsafe { argv.add(at) };
            // SAFETY: and this is one of them.
            let word = unsafe { *word };
            // SAFETY: and for a string behind each.
            let word = unsafe { std::ffi::CStr::from_ptr(word) };
            std::ffi::OsString::from_vec(word.to_bytes().to_vec())
        })
        .collect()
}
