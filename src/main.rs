//! sundown: starts a container's program, runs as PID 1 in front of it, and brings it down without losing a request.
#![cfg_attr(not(test), no_main)]

mod child;
mod entry;
mod signals;

/// C's `main`, in place of Rust's: the runtime's own start would set SIGPIPE to ignored before we could see what it was.
///
/// A stand-in for the supervisor: starts the command after `--`, waits for it, ends with its code.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(_argc: libc::c_int, _argv: *const *const libc::c_char) -> libc::c_int {
    let inherited = signals::Inherited::take_over(entry::original_mask());
    if child::std_fds::sanitize_std_fds().is_err() {
        return 1;
    }
    let terminal = child::terminal::Terminal::of_stdin();
    let argv = std::env::args_os().skip_while(|arg| arg != "--").skip(1).collect();
    let how = child::start::How {
        inherited,
        terminal,
        own_group: true,
        quiet: false,
    };
    let started = child::program::Program::new(argv, std::env::vars_os().collect())
        .and_then(|program| child::start::start(&program, how));
    match started {
        Ok(pid) => wait(pid, terminal),
        Err(error) => {
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("sundown: {error}\n"));
            error.code.into()
        }
    }
}

#[cfg(not(test))]
fn wait(pid: i32, terminal: Option<child::terminal::Terminal>) -> libc::c_int {
    let mut status = 0;
    // SAFETY: the pointer is to a number of ours.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    terminal.map(|terminal| terminal.take_back(pid));
    child::end::Ended::from_status(status).map_or(1, |ended| ended.code().into())
}
