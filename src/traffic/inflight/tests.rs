//! The rule case by case, with invented samples and invented time.

use super::*;
use crate::traffic::diag::Family;

const fn ms(milliseconds: u64) -> Moment {
    Moment::from_millis(milliseconds)
}

/// A connection that had a request 40 s ago and answered it 39 s ago.
fn idle(cookie: u64) -> Connection {
    Connection {
        family: Family::V4,
        local: "127.0.0.1:80".parse().expect("an address"),
        remote: "10.0.0.9:40000".parse().expect("an address"),
        state: State::ESTABLISHED,
        inode: 4242,
        cookie,
        rqueue: 0,
        wqueue: 0,
        info: Some(Info {
            last_data_recv_ms: 40_000,
            last_data_sent_ms: 39_000,
            last_ack_recv_ms: 39_000,
            unacked: 0,
            bytes_received: 100,
            bytes_acked: 900,
            segs_out: 3,
            data_segs_out: 2,
        }),
        cgroup: None,
    }
}

/// The same with other times since data came and since it went, and nothing acknowledged since data came.
fn timed(recv: u32, sent: u32) -> Connection {
    let mut connection = idle(1);
    let info = connection.info.as_mut().expect("it has counters");
    (info.last_data_recv_ms, info.last_data_sent_ms, info.last_ack_recv_ms) = (recv, sent, recv);
    connection
}

fn with(connection: Connection, change: impl Fn(&mut Connection, &mut Info)) -> Connection {
    let mut connection = connection;
    let mut info = connection.info.expect("it has counters");
    change(&mut connection, &mut info);
    Connection { info: Some(info), ..connection }
}

/// One sample: the verdicts and the totals.
fn sample(flight: &mut InFlight, now: Moment, connections: &[Connection]) -> (Vec<Verdict>, Totals) {
    flight.begin(now);
    let verdicts = connections.iter().map(|connection| flight.see(connection)).collect();
    (verdicts, flight.totals())
}

/// One sample of one tie, which is decided: the verdict before, and how many are in flight then.
fn decided(flight: &mut InFlight, now: Moment, tie: Connection, alone: Option<bool>) -> (Verdict, u32) {
    flight.begin(now);
    let verdict = flight.see(&tie);
    flight.decide(tie.cookie, alone);
    (verdict, flight.totals().in_flight)
}

#[test]
fn a_single_look_tells_most() {
    let fresh = |connection: Connection| with(connection, |_, info| (info.bytes_received, info.data_segs_out) = (0, 0));
    let closed = |state, wqueue| Connection { state, wqueue, ..idle(1) };
    let table = [
        ("answered", timed(40_000, 39_000), Verdict::Idle),
        ("answered just now", timed(8, 4), Verdict::Idle),
        ("a request without its answer", timed(6_000, 9_000), Verdict::Busy),
        ("one that has just come", timed(0, 4), Verdict::Busy),
        ("a young tie", timed(216, 216), Verdict::Busy),
        ("an old tie", timed(220, 220), Verdict::Undecided),
        ("nothing ever came", fresh(timed(20, 20)), Verdict::Fresh),
        ("nothing ever went", with(timed(900, 900), |_, info| info.data_segs_out = 0), Verdict::Busy),
        ("unread bytes", Connection { rqueue: 1, ..idle(1) }, Verdict::Busy),
        ("bytes not acknowledged", Connection { wqueue: 1, ..idle(1) }, Verdict::Busy),
        ("in the accept queue", Connection { inode: 0, ..fresh(idle(1)) }, Verdict::Busy),
        ("the kernel says nothing", Connection { info: None, ..idle(1) }, Verdict::Untold),
        ("the client has closed, the app has not", closed(State::CLOSE_WAIT, 0), Verdict::Idle),
        ("nor read its end", Connection { rqueue: 1, ..closed(State::CLOSE_WAIT, 0) }, Verdict::Idle),
        ("half closed behind its request", Connection { state: State::CLOSE_WAIT, ..timed(4, 90) }, Verdict::Busy),
        ("nor read its request", Connection { rqueue: 2, ..closed(State::CLOSE_WAIT, 0) }, Verdict::Busy),
        ("closed behind an answer that is still on its way", closed(State::FIN_WAIT1, 500), Verdict::Busy),
        ("closed, and only that to be acknowledged", closed(State::FIN_WAIT1, 1), Verdict::Over),
        ("both have closed", closed(State::LAST_ACK, 1), Verdict::Over),
        (
            "connected and closed without a byte",
            { with(closed(State::CLOSE_WAIT, 0), |_, info| (info.bytes_received, info.data_segs_out) = (1, 0)) },
            Verdict::Fresh,
        ),
    ];
    for (what, connection, verdict) in table {
        assert_eq!(sample(&mut InFlight::default(), ms(100_000), &[connection]).0, [verdict], "{what}");
    }
}

#[test]
fn a_tie_is_decided_by_an_acknowledgement_that_goes_out_alone() {
    let mut flight = InFlight::default();
    let tie = |age: u32, alone: u32| with(timed(age, age), |_, info| info.segs_out += alone);
    assert_eq!(sample(&mut flight, ms(1000), &[tie(20, 0)]).0, [Verdict::Busy]);
    assert_eq!(sample(&mut flight, ms(1025), &[tie(45, 1)]).0, [Verdict::Busy]);
    assert_eq!(sample(&mut flight, ms(1500), &[tie(520, 1)]).0, [Verdict::Busy], "and stays so");
    assert_eq!(sample(&mut flight, ms(90_000), &[tie(89_020, 2)]).0, [Verdict::Busy]);
    let answered = with(timed(90_000, 4), |_, info| (info.segs_out, info.data_segs_out) = (5, 3));
    assert_eq!(sample(&mut flight, ms(91_000), &[answered]).0, [Verdict::Idle]);
}

#[test]
fn a_tie_whose_acknowledgement_went_with_the_answer_is_idle() {
    let mut flight = InFlight::default();
    for now in [1000, 1025, 1050, 1200] {
        assert_eq!(sample(&mut flight, ms(now), &[timed(now as u32 - 990, now as u32 - 990)]).0, [Verdict::Busy]);
    }
    assert_eq!(decided(&mut flight, ms(1225), timed(235, 235), Some(false)), (Verdict::Undecided, 0));
    // A client's keep-alive probe is answered without data: that is no delayed acknowledgement.
    let probed = with(timed(15_000, 15_000), |_, info| info.segs_out += 1);
    assert_eq!(sample(&mut flight, ms(16_000), &[probed]).0, [Verdict::Idle]);
}

#[test]
fn a_tie_whose_client_acknowledged_an_answer_later_is_idle() {
    let acknowledged = |later: u32| with(timed(900, 900), |_, info| info.last_ack_recv_ms -= later);
    for (later, verdict) in
        [(0, Verdict::Undecided), (4, Verdict::Idle), (44, Verdict::Idle), (800, Verdict::Undecided)]
    {
        assert_eq!(sample(&mut InFlight::default(), ms(9000), &[acknowledged(later)]).0, [verdict], "{later} ms later");
    }
}

/// A request in several segments is acknowledged at once, whether or not it is answered.
#[test]
fn a_tie_that_cannot_be_told_apart_is_busy_for_five_seconds() {
    let several = |age: u32| with(timed(age, age), |_, info| info.segs_out += 1);
    for known in [Some(false), None] {
        let mut flight = InFlight::default();
        assert_eq!(decided(&mut flight, ms(1300), several(300), known), (Verdict::Undecided, 1));
        assert_eq!(sample(&mut flight, ms(5900), &[several(4900)]).0, [Verdict::Busy]);
        assert_eq!(sample(&mut flight, ms(6000), &[several(5000)]).0, [Verdict::Idle]);
        let old = decided(&mut InFlight::default(), ms(6000), several(5000), known);
        assert_eq!(old, (Verdict::Undecided, 0), "older than that when first seen");
    }
}

#[test]
fn an_acknowledgement_in_a_sample_that_moved_bytes_says_nothing() {
    let mut flight = InFlight::default();
    sample(&mut flight, ms(1000), &[timed(300, 300)]);
    let moved = with(timed(230, 230), |_, info| (info.bytes_received, info.segs_out) = (200, 4));
    assert_eq!(sample(&mut flight, ms(1300), &[moved]).0, [Verdict::Undecided]);
}

#[test]
fn a_tie_can_be_decided_from_elsewhere_until_a_byte_moves() {
    for (alone, in_flight, later) in [(true, 1, Verdict::Busy), (false, 0, Verdict::Idle)] {
        let mut flight = InFlight::default();
        assert_eq!(decided(&mut flight, ms(1000), timed(300, 300), Some(alone)), (Verdict::Undecided, in_flight));
        assert_eq!(sample(&mut flight, ms(2000), &[timed(1300, 1300)]).0, [later]);
        let next = with(timed(230, 230), |_, info| info.bytes_received += 100);
        assert_eq!(sample(&mut flight, ms(3000), &[next]).0, [Verdict::Undecided]);
    }
}

#[test]
fn quiet_counts_from_the_last_byte_or_the_last_time_it_was_busy() {
    let mut flight = InFlight::default();
    let (_, totals) = sample(&mut flight, ms(50_000), &[idle(1)]);
    assert_eq!(totals.last_active, Some(ms(11_000)), "39 s before the first look");
    assert_eq!(totals.quiet_for(ms(50_000), ms(50_000)), Duration::from_secs(39));
    let (_, totals) = sample(&mut flight, ms(50_050), &[timed(30, 6_000)]);
    assert_eq!((totals.last_active, totals.in_flight), (Some(ms(50_050)), 1));
    let (_, totals) = sample(&mut flight, ms(50_100), &[timed(80, 20)]);
    assert_eq!((totals.last_active, totals.in_flight), (Some(ms(50_080)), 0));
    let (_, totals) = sample(&mut flight, ms(51_080), &[]);
    assert_eq!(totals.quiet_for(ms(51_080), ms(50_000)), Duration::from_secs(1), "the connection has gone meanwhile");
}

/// No rule sees the request here: the answer has begun, so data went after data came.
#[test]
fn the_last_bytes_of_a_connection_that_has_ended_count() {
    let mut flight = InFlight::default();
    let closing = |recv, sent| Connection { cookie: 2, ..timed(recv, sent) };
    let (_, totals) = sample(&mut flight, ms(1000), &[timed(100, 900), closing(100, 900)]);
    assert_eq!(totals.last_active, Some(ms(1000)));
    // Answered and closed between two samples.
    flight.begin(ms(1800));
    flight.see_closed(&timed(900, 10), ms(1800));
    assert_eq!(flight.totals().last_active, Some(ms(1790)));
    // Closed by the app, and not gone yet.
    let (_, totals) = sample(&mut flight, ms(2500), &[Connection { state: State::FIN_WAIT1, ..closing(900, 20) }]);
    assert_eq!((totals.connections, totals.last_active), (0, Some(ms(2480))));
}

#[test]
fn a_stream_that_pauses_for_less_than_the_window_is_never_quiet() {
    let mut flight = InFlight::default();
    let mut longest = Duration::ZERO;
    for now in (1000..9000).step_by(50) {
        let pause = (now - 1000) % 800;
        let (_, totals) = sample(&mut flight, ms(now), &[timed(now as u32, pause as u32)]);
        longest = longest.max(totals.quiet_for(ms(now), ms(1000)));
    }
    assert!(longest < Duration::from_secs(1), "{longest:?}");
}

#[test]
fn nothing_at_all_is_quiet_since_the_looking_began() {
    let mut flight = InFlight::default();
    let (_, totals) = sample(&mut flight, ms(5000), &[]);
    assert_eq!(totals.quiet_for(ms(5200), ms(5000)), Duration::from_millis(200));
}

#[test]
fn the_accept_queue_is_busy_and_counted_once() {
    let mut flight = InFlight::default();
    flight.begin(ms(1000));
    flight.see(&Connection { inode: 0, ..idle(1) });
    flight.see_queue(2);
    flight.see_queue(1);
    let totals = flight.totals();
    assert_eq!((totals.accept_queue, totals.connections, totals.last_active), (3, 1, Some(ms(1000))));
    let (_, totals) = sample(&mut flight, ms(2000), &[Connection { inode: 0, ..idle(1) }]);
    assert_eq!(totals.accept_queue, 1, "the listener is gone, the connection is not");
}

#[test]
fn new_connections_are_those_that_the_first_sample_did_not_show() {
    let mut flight = InFlight::default();
    flight.see_closed(&idle(99), ms(0));
    assert_eq!(sample(&mut flight, ms(0), &[idle(1), idle(2)]).1.new, 0);
    let (_, totals) = sample(&mut flight, ms(700), &[idle(1), idle(3)]);
    assert_eq!((totals.new, totals.last_new), (1, Some(ms(700))));
    flight.begin(ms(900));
    flight.see_closed(&idle(2), ms(900));
    flight.see_closed(&idle(3), ms(900));
    flight.see_closed(&Connection { cookie: 4, ..timed(20, 10) }, ms(900));
    flight.see_closed(&idle(5), ms(900));
    let totals = flight.totals();
    assert_eq!((totals.new, totals.last_new, totals.last_active), (2, Some(ms(900)), Some(ms(900))));
    let (_, totals) = sample(&mut flight, ms(1900), &[idle(1)]);
    assert_eq!((totals.new, totals.last_new), (2, Some(ms(900))));
}

#[test]
fn a_connection_that_ended_while_a_sample_was_taken_is_new() {
    let mut flight = InFlight::default();
    sample(&mut flight, ms(1000), &[]);
    flight.begin(ms(1050));
    // Its last byte was at 1010 ms, and the app took its time to close.
    flight.see_closed(&timed(80, 80), ms(1090));
    assert_eq!(flight.totals().new, 1);
}

#[test]
fn no_more_are_new_than_the_kernel_has_accepted() {
    let mut flight = InFlight::default();
    sample(&mut flight, ms(0), &[]);
    flight.begin(ms(50));
    // Its last byte was at -10 ms, but when it ended is not said.
    flight.see_closed(&timed(30, 30), ms(50));
    let totals = flight.totals();
    assert_eq!((totals.new, totals.last_new), (1, Some(ms(50))));
    assert_eq!((totals.of_accepted(0).new, totals.of_accepted(0).last_new), (0, None));
    assert_eq!(totals.of_accepted(7), totals);
}

#[test]
fn a_connection_that_the_list_shows_twice_counts_once() {
    let mut flight = InFlight::default();
    sample(&mut flight, ms(0), &[]);
    let (_, totals) = sample(&mut flight, ms(50), &[timed(5, 900), timed(5, 900)]);
    assert_eq!((totals.connections, totals.in_flight, totals.new), (1, 1, 1));
}

#[test]
fn a_sample_that_broke_off_is_begun_anew() {
    let mut flight = InFlight::default();
    flight.begin(ms(1000));
    flight.see(&timed(5, 900));
    flight.see_queue(4);
    let (_, totals) = sample(&mut flight, ms(1000), &[timed(5, 900)]);
    assert_eq!((totals.connections, totals.in_flight, totals.accept_queue, totals.new), (1, 1, 0, 0));
}

#[test]
fn who_is_shown_no_more_is_forgotten_in_the_end() {
    let mut flight = InFlight::default();
    sample(&mut flight, ms(0), &[idle(1)]);
    sample(&mut flight, ms(30_000), &[]);
    assert_eq!(flight.known.len(), 1);
    sample(&mut flight, ms(30_001), &[]);
    assert_eq!(flight.known.len(), 0);
}

#[test]
fn the_oldest_request_and_the_longest_idle_are_told() {
    let all = [timed(12_000, 13_000), Connection { cookie: 2, ..timed(4_000, 5_000) }, idle(3)];
    let (_, totals) = sample(&mut InFlight::default(), ms(100_000), &all);
    assert_eq!((totals.oldest_request, totals.longest_idle), (ms(12_000), ms(39_000)));
    assert_eq!((totals.connections, totals.in_flight), (3, 2));
}

/// The connection after more has come and gone; both in bytes or segments since the last sample.
fn after(connection: &Connection, came: u64, went: u32) -> Connection {
    with(*connection, |_, info| {
        info.bytes_received += came;
        info.data_segs_out += went;
        info.segs_out += went;
        (info.last_data_recv_ms, info.last_data_sent_ms) = (20, if went > 0 { 10 } else { 5000 });
    })
}

#[test]
fn requests_are_counted_and_an_upload_is_one() {
    let mut flight = InFlight::default();
    let old = idle(1);
    assert_eq!(sample(&mut flight, ms(1000), &[old]).1.requests, 0, "what was there at the first sample is old");
    let begun = after(&old, 500, 0);
    assert_eq!(sample(&mut flight, ms(1050), &[begun]).1.requests, 1);
    let more = after(&begun, 500, 0);
    assert_eq!(sample(&mut flight, ms(1100), &[more]).1.requests, 1, "no answer in between: it is the same one");
    let answered = after(&more, 0, 3);
    assert_eq!(sample(&mut flight, ms(1150), &[answered]).1.requests, 1);
    let next = after(&answered, 80, 1);
    let totals = sample(&mut flight, ms(1200), &[next]).1;
    assert_eq!((totals.requests, totals.last_request), (2, Some(ms(1180))));
    let ended = with(next, |connection, info| {
        connection.state = State::CLOSE_WAIT;
        info.bytes_received += 1;
    });
    assert_eq!(sample(&mut flight, ms(1250), &[ended]).1.requests, 2, "an end of stream asks for nothing");
}

#[test]
fn requests_of_connections_that_came_and_went_are_counted() {
    let mut flight = InFlight::default();
    sample(&mut flight, ms(1000), &[]);
    let short = |cookie, bytes| {
        with(idle(cookie), |connection, info| {
            connection.state = State::LAST_ACK;
            info.bytes_received = bytes;
            (info.last_data_recv_ms, info.last_data_sent_ms) = (20, 10);
        })
    };
    flight.begin(ms(1100));
    flight.see_closed(&short(7, 81), ms(1100));
    flight.see_closed(&short(8, 1), ms(1100));
    let totals = flight.totals();
    assert_eq!((totals.new, totals.requests, totals.last_request), (2, 1, Some(ms(1090))));
}
