//! The stop: who hears, when, and what is left at the end.

mod common;

use std::time::Duration;

use common::instance::Launch;

#[test]
fn an_app_behind_a_shell_hears_once_and_finishes_its_clean_up() {
    if !common::is_root("a PID namespace") {
        return;
    }
    let mut instance = Launch::sundown(&[]).pid1().start(&["sh", "-c", "{app} catch=TERM cleanup=1; true"]);
    instance.wait_record("app up");
    instance.signal(libc::SIGTERM);
    let (code, took) = instance.wait();
    assert_eq!((instance.count("app heard SIGTERM"), instance.count("app clean")), (1, 1), "{}", instance.log());
    assert_eq!(code, 0, "{}", instance.log());
    assert!(took < Duration::from_secs(2), "{took:?}");
}
