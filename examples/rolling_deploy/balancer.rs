//! A small load balancer: round robin, connections to the targets kept and reused, no request sent twice, and no idea of a
//! target's state but what it is told.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::LocalSet;

use crate::board::Board;
use crate::common::wire::{Message, read_message};
use crate::instance;

/// A balancer that runs on a thread of its own, for as long as the program does.
pub struct Balancer {
    /// Where clients connect to.
    pub address: SocketAddr,
    targets: Arc<Mutex<Targets>>,
    board: Board,
}

#[derive(Default)]
struct Targets {
    /// The instances' numbers and addresses, the next to be asked in front.
    all: VecDeque<(usize, SocketAddr)>,
}

impl Targets {
    fn next(&mut self) -> Option<(usize, SocketAddr)> {
        let next = self.all.pop_front()?;
        self.all.push_back(next);
        Some(next)
    }
}

impl Balancer {
    /// Starts one without targets. What becomes of the requests is counted on `board`.
    ///
    /// # Errors
    ///
    /// Where there is no port or no runtime to be had.
    pub fn start(board: Board) -> io::Result<Balancer> {
        let targets = Arc::new(Mutex::new(Targets::default()));
        let listener = std::net::TcpListener::bind(instance::free_address()?)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        thread::spawn({
            let (targets, board) = (Arc::clone(&targets), board.clone());
            move || {
                let proxy = Rc::new(Proxy { targets, board, idle: RefCell::default() });
                LocalSet::new().block_on(&runtime, accept_all(listener, proxy))
            }
        });
        Ok(Balancer { address, targets, board })
    }

    /// Puts an instance into rotation.
    pub fn add(&self, number: usize, address: SocketAddr) {
        self.targets.lock().expect("no holder panics").all.push_back((number, address));
        self.board.set_routed(number, true);
    }

    /// Takes an instance out of rotation. Requests under way are not touched.
    pub fn remove(&self, number: usize) {
        self.targets.lock().expect("no holder panics").all.retain(|(other, _)| *other != number);
        self.board.set_routed(number, false);
    }
}

struct Proxy {
    targets: Arc<Mutex<Targets>>,
    board: Board,
    idle: RefCell<HashMap<SocketAddr, Vec<TcpStream>>>,
}

/// Why a target gave no answer.
enum Failure {
    /// No connection: the request was not even sent.
    Refused,
    /// The connection ended first.
    CutOff,
}

async fn accept_all(listener: std::net::TcpListener, proxy: Rc<Proxy>) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let proxy = Rc::clone(&proxy);
        // A client that went away is no business of the others.
        tokio::task::spawn_local(async move { proxy.serve(stream).await.ok() });
    }
}

impl Proxy {
    async fn serve(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        while let Some(request) = read_message(&mut client).await? {
            let Some((number, address)) = self.targets.lock().expect("no holder panics").next() else {
                client.write_all(b"HTTP/1.1 503 Nobody There\r\nContent-Length: 0\r\n\r\n").await?;
                continue;
            };
            self.board.count(number, |counts| counts.sent += 1);
            match self.forward(&request, address).await {
                Ok(answer) => {
                    self.board.count(number, |counts| counts.ok += 1);
                    client.write_all(&answer.bytes).await?;
                }
                Err(failure) => {
                    self.board.count(number, |counts| counts.lost += 1);
                    let status = match failure {
                        Failure::Refused => "503 Refused",
                        Failure::CutOff => "502 Cut Off",
                    };
                    client.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes()).await?;
                }
            }
        }
        Ok(())
    }

    /// Sends the request once, and returns the answer that came for it.
    async fn forward(&self, request: &Message, address: SocketAddr) -> Result<Message, Failure> {
        let mut target = match self.kept(address) {
            Some(stream) => stream,
            None => TcpStream::connect(address).await.map_err(|_| Failure::Refused)?,
        };
        target.set_nodelay(true).map_err(|_| Failure::CutOff)?;
        target.write_all(&request.bytes).await.map_err(|_| Failure::CutOff)?;
        let answer = read_message(&mut target).await.ok().flatten().ok_or(Failure::CutOff)?;
        if answer.keep_alive {
            self.idle.borrow_mut().entry(address).or_default().push(target);
        }
        Ok(answer)
    }

    /// A kept connection that, as far as can be seen, is still open.
    fn kept(&self, address: SocketAddr) -> Option<TcpStream> {
        let mut idle = self.idle.borrow_mut();
        let idle = idle.get_mut(&address)?;
        while let Some(stream) = idle.pop() {
            let open = stream.try_read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
            if open {
                return Some(stream);
            }
        }
        None
    }
}
