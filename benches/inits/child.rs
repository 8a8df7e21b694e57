//! What `benches/inits.rs` puts behind each init: a static program without a C library, whose first instructions tell the time,
//! so that what is measured is the init's. It is compiled by rustc when the benchmark runs, and tells what it has to on stdout:
//! times of CLOCK_MONOTONIC and counts, each of 8 bytes.
//!
//! `child wait` tells when it began, takes signals by sigwaitinfo and tells when each came, and ends at a TERM.
//! `child orphans N` tells how long N orphans that end at once took to be reaped, and how many processes there were at most
//! above those that there were before, while N orphans ended one after another.
#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

const WRITE: usize = 1;
const SIGACTION: usize = 13;
const SIGPROCMASK: usize = 14;
const PAUSE: usize = 34;
const NANOSLEEP: usize = 35;
const FORK: usize = 57;
const EXIT: usize = 60;
const WAIT4: usize = 61;
const KILL: usize = 62;
const SYSINFO: usize = 99;
const SETPGID: usize = 109;
const SIGTIMEDWAIT: usize = 128;
const CLOCK_GETTIME: usize = 228;

const SIGKILL: usize = 9;
const SIGUSR1: usize = 10;
const SIGTERM: usize = 15;
const ESRCH: isize = -3;

global_asm!(".globl _start", "_start: xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {begin}", begin = sym begin);

/// What the stack begins with is argc and argv.
unsafe extern "C" fn begin(stack: *const *const u8) -> ! {
    let began = now();
    let word = |at: usize| unsafe { *stack.add(1 + at) };
    if unsafe { *word(1) } == b'w' { wait(began) } else { orphans(number(word(2))) }
}

fn wait(began: u64) -> ! {
    // That it is caught: sundown passes no signal on that would only kill. It stays blocked, so no handler runs.
    let nothing = [wait as *const () as usize, 0x0400_0000, wait as *const () as usize, 0];
    call(SIGACTION, SIGUSR1, nothing.as_ptr() as usize, 0, 8);
    let all = [u64::MAX];
    call(SIGPROCMASK, 0, all.as_ptr() as usize, 0, 8);
    tell(began);
    loop {
        let signal = call(SIGTIMEDWAIT, all.as_ptr() as usize, 0, 0, 8);
        let came = now();
        if signal == SIGTERM as isize {
            exit(0);
        }
        tell(came);
    }
}

fn orphans(count: usize) -> ! {
    let before = processes();
    let group = park(count);
    sleep(20_000_000);
    let began = now();
    call(KILL, group.wrapping_neg(), SIGKILL, 0, 0);
    // A question to the whole group, zombies and all, would hold the lock that their reaper needs: not while there are many.
    let mut looks = 0;
    while looks < 20_000 && processes() > before + 100 {
        sleep(100_000);
        looks += 1;
    }
    while call(KILL, group.wrapping_neg(), 0, 0, 0) != ESRCH {
        sleep(50_000);
    }
    tell(now() - began);
    tell(stream(count));
    exit(0)
}

/// Makes orphans that wait for their end, in a process group of their own, which is returned.
fn park(count: usize) -> usize {
    let middle = fork();
    if middle == 0 {
        call(SETPGID, 0, 0, 0, 0);
        for _ in 0..count {
            if fork() == 0 {
                loop {
                    call(PAUSE, 0, 0, 0, 0);
                }
            }
        }
        exit(0);
    }
    call(WAIT4, middle, 0, 0, 0);
    middle
}

/// Makes orphans that end at once, as `(command &)` of a shell does, and gives the greatest number of processes meanwhile.
fn stream(count: usize) -> u64 {
    let before = processes();
    let mut most = 0;
    for _ in 0..count {
        let middle = fork();
        if middle == 0 {
            fork();
            exit(0);
        }
        call(WAIT4, middle, 0, 0, 0);
        most = processes().saturating_sub(before).max(most);
    }
    most
}

fn fork() -> usize {
    let pid = call(FORK, 0, 0, 0, 0);
    if pid < 0 {
        exit(1);
    }
    pid as usize
}

/// How many there are on the machine, zombies too (sysinfo(2)).
fn processes() -> u64 {
    let mut info = [0u16; 64];
    call(SYSINFO, info.as_mut_ptr() as usize, 0, 0, 0);
    info[40].into()
}

fn now() -> u64 {
    let mut time = [0u64; 2];
    call(CLOCK_GETTIME, 1, time.as_mut_ptr() as usize, 0, 0);
    time[0] * 1_000_000_000 + time[1]
}

fn sleep(nanoseconds: u64) {
    let time = [0, nanoseconds];
    call(NANOSLEEP, time.as_ptr() as usize, 0, 0, 0);
}

fn tell(number: u64) {
    let bytes = number.to_ne_bytes();
    call(WRITE, 1, bytes.as_ptr() as usize, 8, 0);
}

fn exit(code: usize) -> ! {
    loop {
        call(EXIT, code, 0, 0, 0);
    }
}

fn number(mut word: *const u8) -> usize {
    let mut number = 0;
    while unsafe { *word } != 0 {
        number = number * 10 + usize::from(unsafe { *word } - b'0');
        word = unsafe { word.add(1) };
    }
    number
}

fn call(name: usize, a: usize, b: usize, c: usize, d: usize) -> isize {
    let result;
    unsafe {
        asm!("syscall", inlateout("rax") name => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
             lateout("rcx") _, lateout("r11") _);
    }
    result
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    exit(2)
}
