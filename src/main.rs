//! sundown: starts a container's program, runs as PID 1 in front of it, and brings it down without losing a request.
#![cfg_attr(not(test), no_main)]

mod check;
mod child;
mod entry;
mod http;
mod signals;

/// C's `main`, in place of Rust's: the runtime's own start would set SIGPIPE to ignored before we could see what it was.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(_argc: libc::c_int, _argv: *const *const libc::c_char) -> libc::c_int {
    let _inherited = signals::Inherited::take_over(entry::original_mask());
    stand_in::run()
}

/// Stands in for the supervisor until that is there: `--http ADDR [OPTION VALUE]... -- COMMAND`, no signal handled.
#[cfg(not(test))]
mod stand_in {
    use std::process::{Child, Command};
    use std::rc::Rc;

    use crate::http::{Address, Answers, Verdict, serve};
    use crate::signals::{self, Signal};

    #[expect(clippy::zombie_processes, reason = "it goes with the process, which only a kill ends")]
    pub fn run() -> i32 {
        let arguments: Vec<_> = std::env::args().skip(1).collect();
        let address = arguments.iter().position(|argument| argument == "--http").map(|at| &arguments[at + 1]);
        let command = arguments.iter().position(|argument| argument == "--").map(|at| &arguments[at + 1..]).unwrap();
        let listener = match Address::parse(address.unwrap()).map(|address| address.bind()) {
            Ok(Ok(listener)) => listener,
            Ok(Err(error)) => return fail(&error.to_string()),
            Err(error) => return fail(&error),
        };
        let _child: Child = Command::new(&command[0]).args(&command[1..]).spawn().unwrap();
        let always = arguments.iter().any(|argument| argument == "running");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        let end = local.block_on(&runtime, serve(listener, Rc::new(StandIn { always })));
        fail(&end.unwrap_err().to_string())
    }

    fn fail(error: &str) -> i32 {
        eprintln!("sundown: {error}");
        2
    }

    struct StandIn {
        always: bool,
    }

    impl Answers for StandIn {
        fn readyz(&self) -> Verdict {
            match signals::pending().contains(Signal::TERM) {
                true => Verdict { ok: false, text: "draining: SIGTERM".to_owned() },
                false if !self.always => Verdict { ok: false, text: "starting: listens on nothing".to_owned() },
                false => Verdict { ok: true, text: "running".to_owned() },
            }
        }

        fn servez(&self) -> Verdict {
            Verdict { ok: true, text: "running".to_owned() }
        }

        fn livez(&self) -> Option<Verdict> {
            None
        }

        fn metrics(&self, out: &mut String) {
            out.push_str("# TYPE sundown_up gauge\nsundown_up 1\n");
        }
    }
}
