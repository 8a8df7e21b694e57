//! Walks through every order of events up to a length, breadth first over distinct states, and holds each step against
//! what the contract promises. Time is invented: it passes only by the event "time to the next timer".

use std::collections::{HashSet, VecDeque};

use super::*;
use crate::plan::{DrainUntil, Step};

const LENGTH: usize = 7;
const SECOND: Duration = Duration::from_secs(1);
const EXITED_3: Ended = Ended::Exited(3);
const BY_TERM: Ended = Ended::Signalled { signal: Signal::TERM, core: false };

const EVENTS: [Event; 21] = [
    Event::Stop(Request::Signal(Signal::TERM, From::Outside), Worth::Serves),
    Event::Stop(Request::Signal(Signal::TERM, From::Outside), Worth::ListensOnNothing),
    Event::Stop(Request::Signal(Signal::TERM, From::Outside), Worth::Database),
    Event::Stop(Request::Signal(Signal::TERM, From::Outside), Worth::Outlives),
    Event::Stop(Request::Signal(Signal::INT, From::Kernel), Worth::Serves),
    Event::Stop(Request::Signal(Signal::INT, From::Outside), Worth::Serves),
    Event::Stop(Request::PreStop, Worth::Serves),
    Event::Stop(Request::CommandNow, Worth::Serves),
    Event::Signal(Signal::HUP),
    Event::Traffic(Lull::Busy),
    Event::Traffic(Lull::Over(DrainEnd::Quiet)),
    Event::Traffic(Lull::Released),
    Event::AppEnded(Ended::Exited(0)),
    Event::ToldGone,
    Event::ChildEnded { ended: EXITED_3, told: false, alone: false },
    Event::ChildEnded { ended: BY_TERM, told: true, alone: false },
    Event::ChildEnded { ended: EXITED_3, told: false, alone: true },
    Event::TreeEmpty,
    Event::Ready(true),
    Event::Ready(false),
    Event::Tick,
];

/// What has been seen on the way, kept apart from the machine's own state: the judge must not ask the accused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Seen {
    now: Moment,
    ready: Option<bool>,
    asked: Option<Moment>,
    /// When it was asked, where a hook's time is not taken off.
    heard: Moment,
    drain_owed: Option<Moment>,
    /// Whatever the traffic does, the app is told by then.
    latest: Option<Moment>,
    hurried: bool,
    /// The balancers have let go: the drain may end before its least time.
    released: bool,
    told: Option<Moment>,
    climbed: usize,
    patient: bool,
    child: Option<(Ended, bool)>,
    app: Option<Ended>,
    waiting: bool,
    interrupts: u8,
    killed: Option<KillReason>,
    exited: bool,
}

struct Case {
    name: &'static str,
    timing: Timing,
}

fn cases() -> Vec<Case> {
    let drain = |seconds, automatic| Drain {
        least: SECOND * seconds,
        greatest: SECOND * seconds,
        until: DrainUntil::Quiet,
        quiet: SECOND,
        unhealthy_threshold: 2,
        outlives: false,
        held: false,
        automatic,
    };
    let timing = Timing {
        drain: drain(6, false),
        deadline: Some(SECOND * 28),
        mercy: SECOND,
        linger: SECOND * 5,
        prestop_elapsed: Duration::ZERO,
        ladder: None,
    };
    let rung = |signal, wait: Option<u32>| Step { signal, wait: wait.map(|seconds| SECOND * seconds) };
    let ladder = |steps: Vec<Step>| Some(Ladder::of(steps));
    vec![
        Case { name: "stated", timing: timing.clone() },
        Case { name: "nothing stated", timing: Timing { deadline: None, drain: drain(5, true), ..timing.clone() } },
        Case {
            name: "a drain that traffic may stretch",
            timing: Timing { drain: Drain { greatest: SECOND * 15, ..drain(6, false) }, ..timing.clone() },
        },
        Case {
            name: "a drain that only traffic keeps",
            timing: Timing { drain: Drain { greatest: SECOND * 9, ..drain(0, false) }, ..timing.clone() },
        },
        Case {
            name: "a drain that balancers may end",
            timing: Timing { drain: Drain { until: DrainUntil::Released, ..drain(6, false) }, ..timing.clone() },
        },
        Case { name: "no drain", timing: Timing { deadline: None, drain: drain(0, true), ..timing.clone() } },
        Case {
            name: "ladder",
            timing: Timing {
                ladder: ladder(vec![rung(Signal::TSTP, Some(4)), rung(Signal::TERM, Some(7))]),
                deadline: None,
                ..timing.clone()
            },
        },
        Case {
            name: "a ladder longer than the deadline",
            timing: Timing {
                ladder: ladder(vec![rung(Signal::INT, Some(30)), rung(Signal::TERM, None)]),
                ..timing.clone()
            },
        },
        Case { name: "a hook's time is counted", timing: Timing { prestop_elapsed: SECOND * 4, ..timing.clone() } },
        Case { name: "a hook has used up everything", timing: Timing { prestop_elapsed: SECOND * 40, ..timing } },
    ]
}

#[test]
fn every_order_of_events_keeps_the_contract() {
    let mut total = 0;
    for case in cases() {
        let start = (Lifecycle::new(case.timing.clone()), Seen { now: SECOND * 100, ..Seen::default() }, Vec::new());
        let mut visited = HashSet::new();
        let mut queue = VecDeque::from([start]);
        while let Some((machine, seen, path)) = queue.pop_front() {
            if !visited.insert((machine.state, seen)) {
                continue;
            }
            runs_out(&case, &machine, seen, &path);
            if path.len() == LENGTH {
                continue;
            }
            for event in EVENTS {
                let Some(now) = moment(&machine, seen, event) else { continue };
                let (mut machine, mut path) = (machine.clone(), path.clone());
                path.push(event);
                let actions = handle(&mut machine, now, event);
                let seen = judge(&case, &machine, Seen { now, ..seen }, event, &actions).unwrap_or_else(|broken| {
                    panic!("{}: {broken}\nafter {path:#?}\ngiven {actions:?}\nin {machine:?}", case.name)
                });
                queue.push_back((machine, seen, path));
            }
        }
        println!("{:>6} states: {}", visited.len(), case.name);
        total += visited.len();
    }
    println!("{total:>6} states in all");
    assert!(total > 10_000, "the walk has become short: {total} states");
}

/// When the event happens, or nothing where it cannot: a timer that is not set, a child that ends twice.
fn moment(machine: &Lifecycle, seen: Seen, event: Event) -> Option<Moment> {
    match event {
        Event::Tick => machine.due().map(|due| due.max(seen.now)),
        Event::ChildEnded { .. } if seen.child.is_some() => None,
        Event::ChildEnded { told: true, .. } if seen.told.is_none() => None,
        Event::TreeEmpty if seen.child.is_none() => None,
        _ => Some(seen.now),
    }
}

/// Holds one step against the contract and notes what was seen.
fn judge(case: &Case, machine: &Lifecycle, mut seen: Seen, event: Event, actions: &[Action]) -> Result<Seen, String> {
    let before = seen;
    note(case, &mut seen, event);
    for action in actions {
        take(case, &mut seen, *action)?;
    }
    if before.exited {
        return if actions.is_empty() { Ok(seen) } else { Err("something is done after the exit".into()) };
    }
    let over = matches!(event, Event::TreeEmpty | Event::ChildEnded { alone: true, .. });
    if over && !seen.exited {
        return Err("the tree is empty and there is no exit".into());
    }
    if seen.asked.is_some() && machine.is_ready() {
        return Err("/readyz says 200 after a stop request".into());
    }
    if machine.is_serving() && (seen.told.is_some() || seen.ready != Some(true)) {
        return Err("/servez says 200 although the app does not serve".into());
    }
    if seen.exited != (machine.phase() == Phase::Exited) {
        return Err("the exit and the phase differ".into());
    }
    if event == Event::Signal(Signal::HUP) && !actions.contains(&Action::PassOn(Signal::HUP)) {
        return Err("HUP is lost".into());
    }
    if seen.waiting && !matches!(machine.phase(), Phase::Draining { .. }) {
        return Err("a preStop call is left without an answer".into());
    }
    Ok(seen)
}

fn note(case: &Case, seen: &mut Seen, event: Event) {
    match event {
        Event::Traffic(lull) => seen.released |= lull == Lull::Released && seen.asked.is_some(),
        Event::Ready(ready) => seen.ready = if ready || seen.ready.is_some() { Some(ready) } else { None },
        Event::ChildEnded { ended, told, .. } => seen.child = Some((ended, told)),
        Event::AppEnded(ended) if seen.child.is_some() => seen.app = Some(ended),
        Event::Stop(request, worth) => {
            let interrupt = request.is_interrupt();
            seen.hurried |= interrupt || request == Request::CommandNow;
            seen.waiting |= request == Request::PreStop && !seen.exited;
            if interrupt && seen.told.is_some() && seen.asked.is_some() {
                seen.interrupts += 1;
            }
            if seen.asked.is_none() && !seen.exited {
                let used =
                    if matches!(request, Request::Signal(..)) { case.timing.prestop_elapsed } else { Duration::ZERO };
                seen.asked = Some(seen.now.saturating_sub(used));
                seen.heard = seen.now;
                let Drain { least, greatest, automatic, .. } = case.timing.drain;
                let worth_it = !automatic || (seen.ready == Some(true) && worth == Worth::Serves);
                let outlives = worth == Worth::Outlives;
                let owed = (seen.ready.is_some() && worth_it || outlives) && seen.told.is_none();
                seen.drain_owed = owed.then_some(seen.asked.unwrap_or_default() + least);
                seen.latest = Some((seen.asked.unwrap_or_default() + greatest).max(seen.now));
            }
        }
        _ => {}
    }
}

/// Notes one action, and says what it breaks.
fn take(case: &Case, seen: &mut Seen, action: Action) -> Result<(), String> {
    let steps = case.timing.ladder.as_ref().map_or(0, |ladder| ladder.steps().len());
    match action {
        Action::Tell(_) => {
            if seen.told.replace(seen.now).is_some() {
                return Err("the apps are told twice".into());
            }
            let early = seen.drain_owed.is_some_and(|until| seen.now < until);
            if early && !seen.hurried && !seen.released && seen.child.is_none() {
                return Err("the app is told before the drain's least time".into());
            }
            if seen.latest.is_some_and(|latest| seen.now > latest) {
                return Err("the app is told after the drain's greatest time".into());
            }
        }
        Action::Climb(rung) => {
            if seen.told.is_none() || rung != seen.climbed + 1 || rung >= steps {
                return Err(format!("rung {rung} out of turn"));
            }
            seen.climbed = rung;
        }
        Action::TellRest | Action::TellPatient if seen.told.is_none() => return Err("the rest is told first".into()),
        Action::TellPatient if seen.patient => return Err("the patient ones are told twice".into()),
        Action::TellPatient => seen.patient = true,
        Action::Release(_) | Action::Answer => seen.waiting = false,
        Action::Kill(why) => kill(case, seen, why)?,
        Action::Exit(outcome) => {
            seen.exited = true;
            exit(seen, outcome)?;
        }
        _ => {}
    }
    Ok(())
}

fn kill(case: &Case, seen: &mut Seen, why: KillReason) -> Result<(), String> {
    let deadline = seen.asked.zip(case.timing.deadline).map(|(asked, limit)| asked + limit);
    let told = seen.told.ok_or("killed before it was told")?;
    if seen.killed.replace(why).is_some() {
        return Err("the kill begins twice".into());
    }
    match why {
        KillReason::Deadline if deadline.is_none() => Err("killed at a deadline that nobody stated".into()),
        KillReason::Deadline if deadline.is_some_and(|at| seen.now < at) => Err("killed before the deadline".into()),
        KillReason::LadderEnd if case.timing.ladder.is_none() => Err("killed at the end of no ladder".into()),
        KillReason::Linger if seen.child.is_none() => Err("leftovers killed while the child lives".into()),
        KillReason::Interrupt if seen.interrupts < 2 => Err("killed without the warning".into()),
        _ if seen.now < told + case.timing.mercy && why != KillReason::Interrupt => {
            Err("killed as soon as it was told".into())
        }
        _ => Ok(()),
    }
}

fn exit(seen: &Seen, outcome: Outcome) -> Result<(), String> {
    let own = match (seen.child, seen.app) {
        (Some((BY_TERM, true)), Some(app)) => Some(app.code()),
        (child, _) => child.map(|(ended, _)| ended.code()),
    };
    let expected = match seen.killed {
        Some(KillReason::Deadline | KillReason::LadderEnd | KillReason::Interrupt) => 137,
        _ if outcome.survivors => 137,
        _ => own.ok_or("exits while the child lives")?,
    };
    if outcome.survivors && seen.killed.is_none() {
        return Err("leaves something behind that it never tried to kill".into());
    }
    if outcome.code != expected || outcome.asked != seen.asked.is_some() || outcome.killed != seen.killed {
        return Err(format!("exit code {} and not {expected}", outcome.code));
    }
    Ok(())
}

/// From every state, with nothing but time: a stated deadline ends it in time, and without any nothing is ever killed.
fn runs_out(case: &Case, machine: &Lifecycle, seen: Seen, path: &[Event]) {
    let (mut machine, mut seen) = (machine.clone(), seen);
    for _ in 0..20 {
        let Some(due) = machine.due() else { break };
        let now = due.max(seen.now);
        let actions = handle(&mut machine, now, Event::Tick);
        seen = judge(case, &machine, Seen { now, ..seen }, Event::Tick, &actions)
            .unwrap_or_else(|broken| panic!("{}: {broken}\nafter {path:#?} and time\nin {machine:?}", case.name));
        if let (Some(asked), Some(limit), Some(told), Some(why)) =
            (seen.asked, case.timing.deadline, seen.told, seen.killed)
        {
            let latest = (asked + limit).max(told.max(seen.heard) + case.timing.mercy);
            assert!(
                why == KillReason::Interrupt || seen.now <= latest + KILL_PATIENCE,
                "{}: killed late after {path:#?}",
                case.name
            );
        }
    }
    assert_eq!(machine.due(), None, "{}: the timers never end after {path:#?}", case.name);
    let stated = case.timing.deadline.is_some() && seen.asked.is_some();
    assert!(
        !stated || seen.exited,
        "{}: a stated deadline does not end it, after {path:#?}\nin {machine:?}",
        case.name
    );
}

fn handle(machine: &mut Lifecycle, now: Moment, event: Event) -> Actions {
    let mut actions = Actions::new();
    machine.handle(now, event, &mut actions);
    actions
}

#[test]
fn late_timers_still_go_in_turn() {
    let mut machine = Lifecycle::new(cases().remove(0).timing);
    let mut now = SECOND * 100;
    handle(&mut machine, now, Event::Ready(true));
    handle(&mut machine, now, Event::Stop(Request::Signal(Signal::TERM, From::Outside), Worth::Serves));
    now += SECOND * 3600;
    let actions = handle(&mut machine, now, Event::Tick);
    assert_eq!(actions, [Action::Release(DrainEnd::TimeUp), Action::Tell(Voice::Own)]);
    assert!(handle(&mut machine, now, Event::Tick).is_empty(), "the app gets a moment to hear");
    now = machine.due().expect("more is due");
    let mut rest = handle(&mut machine, now, Event::Tick);
    while let Some(due) = machine.due() {
        rest.extend(handle(&mut machine, due, Event::Tick));
    }
    assert!(matches!(rest[..], [Action::TellPatient, Action::Kill(KillReason::Deadline), Action::Exit(_)]), "{rest:?}");
}

#[test]
fn term_after_prestop_does_not_restart_the_drain() {
    let mut machine = Lifecycle::new(cases().remove(0).timing);
    let now = SECOND * 100;
    handle(&mut machine, now, Event::Ready(true));
    handle(&mut machine, now, Event::Stop(Request::PreStop, Worth::Serves));
    let until = machine.due();
    handle(&mut machine, now + SECOND * 4, Event::Stop(Request::Signal(Signal::TERM, From::Outside), Worth::Serves));
    assert_eq!(machine.due(), until);
    assert_eq!(until, Some(now + SECOND * 6));
}
