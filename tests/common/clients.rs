//! Clients on keep-alive connections, none of which repeats a request: a proxy that has the next one ready as soon as it has
//! the answer, and people who think first.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After this a request counts as failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// How the clients of a service behave. Times are in milliseconds, from the least to below the greatest.
#[derive(Clone, Copy)]
pub struct Habit {
    pub name: &'static str,
    pub connections: usize,
    /// How long the service is to take for an answer.
    pub answer: (u32, u32),
    /// The pause between an answer and the next request.
    pub think: (u32, u32),
    /// Whether a request's body follows its head in a segment of its own, as some libraries send it.
    pub in_two: bool,
    /// How long the last answer of one of the connections takes, whose request follows at once on the answer before.
    pub last: Option<u32>,
}

impl Habit {
    pub const BUSY_PROXY: Habit =
        Habit { name: "busy proxy", connections: 8, answer: (5, 30), think: (0, 1), in_two: false, last: None };
    pub const THINKING: Habit = Habit { name: "thinking clients", think: (20, 300), ..Self::BUSY_PROXY };

    /// The same, with a last request that takes longer than a quiet window.
    pub const fn with_a_slow_last(self, name: &'static str) -> Habit {
        Habit { name, last: Some(2500), ..self }
    }
}

/// What became of the requests.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub answered: usize,
    pub failed: usize,
    /// When the last answer was whole.
    pub last: Instant,
}

/// They ask, each on a thread of its own.
pub struct Clients {
    enough: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Client>>,
}

impl Clients {
    /// Lets them begin. The same seed gives the same times.
    pub fn start(address: SocketAddr, habit: Habit, seed: u64) -> Self {
        let (enough, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let start = |at: usize| {
            let (enough, answered) = (Arc::clone(&enough), Arc::clone(&answered));
            let mut dice = Dice(seed * 1000 + at as u64);
            let last = habit.last.filter(|_| at == 0);
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                client.ask_on(habit, last, &mut dice, &enough, &answered);
                client
            })
        };
        let threads = (0..habit.connections).map(start).collect();
        Self { enough, answered, threads }
    }

    /// How many answers there were so far.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::SeqCst)
    }

    /// Lets them send no more, but for a last request of the habit. Their connections stay open.
    pub fn enough(&self) {
        self.enough.store(true, Ordering::SeqCst);
    }

    /// Waits for the last answer. The connections are closed then.
    pub fn outcome(self) -> Outcome {
        self.enough();
        let clients: Vec<Client> = self.threads.into_iter().map(|one| one.join().expect("no client panics")).collect();
        Outcome {
            answered: self.answered.load(Ordering::SeqCst),
            failed: clients.iter().filter(|client| client.has_failed).count(),
            last: clients.iter().filter_map(|client| client.last).max().expect("an answer"),
        }
    }
}

/// One connection.
pub struct Client {
    stream: TcpStream,
    last: Option<Instant>,
    has_failed: bool,
}

impl Client {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the service listens");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        Self { stream, last: None, has_failed: false }
    }

    /// POSTs a request that the service answers after this long.
    pub fn ask(&mut self, ms: u32) -> io::Result<()> {
        self.stream.write_all(format!("{}{BODY}", head(ms)).as_bytes())
    }

    fn ask_in_two(&mut self, ms: u32) -> io::Result<()> {
        self.stream.write_all(head(ms).as_bytes())?;
        self.stream.write_all(BODY.as_bytes())
    }

    /// Reads an answer: its status and body.
    pub fn answer(&mut self) -> io::Result<(u16, String)> {
        let answer = read_answer(&mut self.stream)?;
        self.last = Some(Instant::now());
        Ok(answer)
    }

    /// The status of one request.
    pub fn work(&mut self, ms: u32) -> io::Result<u16> {
        self.ask(ms)?;
        Ok(self.answer()?.0)
    }

    fn ask_on(
        &mut self,
        habit: Habit,
        last: Option<u32>,
        dice: &mut Dice,
        enough: &AtomicBool,
        answered: &AtomicUsize,
    ) {
        let mut is_last = false;
        while !self.has_failed && !is_last {
            is_last = enough.load(Ordering::SeqCst);
            let ms = match last {
                Some(ms) if is_last => ms,
                None if is_last => break,
                _ => dice.between(habit.answer),
            };
            let asked = if habit.in_two { self.ask_in_two(ms) } else { self.ask(ms) };
            self.has_failed = !asked.and_then(|()| self.answer()).is_ok_and(|(status, _)| status == 200);
            answered.fetch_add(usize::from(!self.has_failed), Ordering::SeqCst);
            if habit.think.1 > 1 && !(last.is_some() && enough.load(Ordering::SeqCst)) {
                std::thread::sleep(Duration::from_millis(dice.between(habit.think).into()));
            }
        }
    }
}

const BODY: &str = "hi";

fn head(ms: u32) -> String {
    format!("POST /work?ms={ms} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", BODY.len())
}

/// Status and body of one answer, by its Content-Length, or chunked, up to the last chunk, with the sizes left in.
///
/// # Errors
/// `UnexpectedEof` where it is cut off, and those of read(2).
pub fn read_answer(stream: &mut impl Read) -> io::Result<(u16, String)> {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(answer) = whole(&String::from_utf8_lossy(&text)) {
            return Ok(answer);
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => text.extend(&buffer[..length]),
        }
    }
}

fn whole(text: &str) -> Option<(u16, String)> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let head = head.to_ascii_lowercase();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
    let is_whole = match length {
        Some(length) => body.len() >= length,
        None => body.ends_with("0\r\n\r\n"),
    };
    is_whole.then(|| (status, body.to_owned()))
}

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Dice(u64);

impl Dice {
    fn between(&mut self, (least, below): (u32, u32)) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        least + ((z ^ (z >> 31)) % u64::from(below - least)) as u32
    }
}
