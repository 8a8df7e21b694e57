//! A client that never retries: POSTs over keep-alive connections, and counts each one that it did not get a 200 for.
//!
//! The rate is kept whatever the answers do (an open loop), since people do not wait for each other to be served either.
#![allow(dead_code, reason = "each test file uses its part")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::{sleep_until, timeout};

use super::wire::read_message;

/// The quickest answer that is asked for.
pub const QUICKEST: Duration = Duration::from_millis(5);
/// The slowest answer that is asked for.
pub const SLOWEST: Duration = Duration::from_millis(2500);
/// After this a request counts as lost. Far above what is asked for: a busy machine is no loss.
const PATIENCE: Duration = Duration::from_secs(15);

/// The header of an answer that another server gave than the one that is to be stopped.
pub const ELSEWHERE: &str = "x-elsewhere";

/// How a request can be lost, as its sender sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loss {
    /// No connection to be had.
    Refused,
    /// The connection ended before the answer did.
    CutOff,
    /// No whole answer within 15 s.
    TimedOut,
    /// An answer, and not a 200.
    Status(u16),
    /// A 200, but to another question.
    Mixed,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Refused => f.write_str("refused"),
            Loss::CutOff => f.write_str("cut off"),
            Loss::TimedOut => f.write_str("timed out"),
            Loss::Status(code) => write!(f, "status {code}"),
            Loss::Mixed => f.write_str("mixed up"),
        }
    }
}

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Traffic {
    pub per_second: f64,
    /// Whether the gaps are as random as those of people who know nothing of each other, or all the same.
    pub random: bool,
    /// How long an answer is to take, from a number between 0 and 1 that is as likely as any other.
    pub answer_after: fn(f64) -> Duration,
    /// The same seed gives the same requests in the same order.
    pub seed: u64,
}

/// What became of the requests. `sent` less `ok` less the lost are still under way.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub sent: u64,
    pub ok: u64,
    pub lost: BTreeMap<Loss, u64>,
    /// When the last whole answer came, without those from [`ELSEWHERE`].
    pub last_answer: Option<Instant>,
}

impl Tally {
    /// Both together.
    #[must_use]
    pub fn with(mut self, other: &Tally) -> Tally {
        self.sent += other.sent;
        self.ok += other.ok;
        other.lost.iter().for_each(|(kind, count)| *self.lost.entry(*kind).or_default() += count);
        self.last_answer = self.last_answer.max(other.last_answer);
        self
    }

    /// All that were lost, of whichever kind.
    pub fn lost(&self) -> u64 {
        self.lost.values().sum()
    }

    /// The kinds of loss and their numbers, the most frequent first; `-` where there are none.
    pub fn kinds(&self) -> String {
        let mut kinds: Vec<_> = self.lost.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let kinds: Vec<_> = kinds.into_iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        if kinds.is_empty() { "-".to_owned() } else { kinds.join(", ") }
    }
}

/// A load that is under way, on a thread of its own.
pub struct Load {
    tally: Arc<Mutex<Tally>>,
    stage: watch::Sender<Stage>,
    thread: Option<JoinHandle<()>>,
}

/// How far a load is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Sending,
    /// Nothing new is sent; connections are kept.
    Enough,
    Over,
}

impl Load {
    /// Starts sending `per_second` requests to `target`, evenly.
    pub fn start(target: SocketAddr, per_second: u32) -> Load {
        let per_second = per_second.into();
        Load::of(target, Traffic { per_second, random: false, answer_after: answer_time, seed: 0x5eed })
    }

    /// Starts sending this.
    pub fn of(target: SocketAddr, traffic: Traffic) -> Load {
        let tally = Arc::new(Mutex::new(Tally::default()));
        let (stage, stages) = watch::channel(Stage::Sending);
        let thread = thread::spawn({
            let tally = Arc::clone(&tally);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                let client = Client { target, idle: RefCell::default(), tally };
                LocalSet::new().block_on(&runtime, client.send_all(traffic, stages));
            }
        });
        Load { tally, stage, thread: Some(thread) }
    }

    /// The count so far.
    pub fn so_far(&self) -> Tally {
        self.tally.lock().expect("the load's thread did not panic").clone()
    }

    /// Sends no more, waits for nothing, and keeps its idle connections open, as a balancer does.
    pub fn let_go(&self) {
        self.stage.send_replace(Stage::Enough);
    }

    /// Sends no more, waits for what is under way, and returns the count.
    pub fn finish(mut self) -> Tally {
        self.stage.send_replace(Stage::Over);
        self.thread.take().map(JoinHandle::join).expect("it was started").expect("the load's thread did not panic");
        self.so_far()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stage.send_replace(Stage::Over);
    }
}

/// All that the requests share: whom they go to, the connections that wait for the next of them, and the count.
struct Client {
    target: SocketAddr,
    idle: RefCell<Vec<TcpStream>>,
    tally: Arc<Mutex<Tally>>,
}

impl Client {
    /// Sends at the rate, whether or not the earlier ones are answered, until it is enough and all are.
    async fn send_all(self, traffic: Traffic, mut stages: watch::Receiver<Stage>) {
        let client = Rc::new(self);
        let mut dice = Dice::new(traffic.seed);
        let mut under_way: Vec<tokio::task::JoinHandle<()>> = Vec::new();
        let mut due = tokio::time::Instant::now();

        loop {
            // What is overdue is sent at once: a rate that falls when the machine is busy would spare whom it tests.
            due += traffic.gap(&mut dice);
            tokio::select! {
                _ = stages.wait_for(|stage| *stage > Stage::Sending) => break,
                () = sleep_until(due) => {}
            }
            let answer_after = (traffic.answer_after)(dice.roll());
            let client = Rc::clone(&client);
            under_way.retain(|request| !request.is_finished());
            under_way.push(tokio::task::spawn_local(async move { client.send(answer_after).await }));
        }
        for request in under_way {
            request.await.expect("no request panics");
        }
        // An error is the end of the sender, and so of the load.
        let _ = stages.wait_for(|stage| *stage == Stage::Over).await;
    }

    /// Sends one request and counts what becomes of it.
    async fn send(&self, answer_after: Duration) {
        self.tally().sent += 1;
        match timeout(PATIENCE, self.exchange(answer_after)).await.unwrap_or(Err(Loss::TimedOut)) {
            Ok(is_elsewhere) => {
                let mut tally = self.tally();
                tally.ok += 1;
                if !is_elsewhere {
                    tally.last_answer = Some(Instant::now());
                }
            }
            Err(loss) => *self.tally().lost.entry(loss).or_default() += 1,
        }
    }

    /// Sends one request, on a kept connection where there is one. A kept one that turns out to be closed is a loss:
    /// nothing may close it that has promised to keep it. Says whether the answer is from [`ELSEWHERE`].
    async fn exchange(&self, answer_after: Duration) -> Result<bool, Loss> {
        let kept = self.idle.borrow_mut().pop();
        let mut stream = match kept {
            Some(stream) => stream,
            None => connect(self.target).await.map_err(|_| Loss::Refused)?,
        };
        let ms = answer_after.as_millis();
        let request = format!("POST /work?ms={ms} HTTP/1.1\r\nHost: service\r\nContent-Length: 2\r\n\r\nhi");
        stream.write_all(request.as_bytes()).await.map_err(|_| Loss::CutOff)?;
        let answer = read_message(&mut stream).await.ok().flatten().ok_or(Loss::CutOff)?;
        let status = answer.start.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(Loss::CutOff)?;
        if status != 200 {
            return Err(Loss::Status(status));
        }
        if !answer.bytes.ends_with(format!("\r\ndone in {ms} ms\n").as_bytes()) {
            return Err(Loss::Mixed);
        }
        if answer.keep_alive {
            self.idle.borrow_mut().push(stream);
        }
        Ok(String::from_utf8_lossy(&answer.bytes).contains(ELSEWHERE))
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("no holder panics")
    }
}

async fn connect(target: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(target).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Most answers are quick and a few are very slow, as in life: half within 25 ms, one in fourteen over a second.
fn answer_time(dice: f64) -> Duration {
    let span = SLOWEST.as_secs_f64() / QUICKEST.as_secs_f64();
    QUICKEST.mul_f64(span.powf(dice * dice))
}

impl Traffic {
    /// From one request to the next.
    fn gap(&self, dice: &mut Dice) -> Duration {
        let gaps = if self.random { -(1.0 - dice.roll()).ln() } else { 1.0 };
        Duration::from_secs_f64(gaps / self.per_second)
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): enough for answer times, and no dependency.
pub struct Dice(u64);

impl Dice {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// A number from 0 up to, and without, 1.
    pub fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A seed for others.
    pub fn seed(&mut self) -> u64 {
        self.roll().to_bits()
    }

    /// A time between the two, in seconds.
    pub fn seconds(&mut self, least: f64, most: f64) -> Duration {
        Duration::from_secs_f64(least + (most - least) * self.roll())
    }
}
