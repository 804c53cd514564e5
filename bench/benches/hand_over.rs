//! How long does a finished batch take to reach the process that sleeps for it?
//!
//! Unit: microseconds from just before the sidecar publishes until the client, a process of its own that was asleep, has
//! taken the batch (p50, p99, p99.9, most), with 1, 4 and 8 clients. In each round all clients sleep, as ranks do that
//! wait for each other; then each gets a batch, one after the other, so that with several the last one's wake-up waits for
//! those before. The clients look at one byte of each row and give the batch back. Two rings: nameless memory with an
//! eventfd, and a named one. Leaves out: decoding, copies to a device, page faults of a ring's first round.
//!
//! `cargo bench -p feedline-bench --bench hand_over -- [--quick] [--clients 1,4,8] [--rounds N] [--json] [--out DIR]`; with
//! `--out` it writes README.md and raw.json there.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::Duration;

use feedline_bench::machine::out_folder;
use feedline_loader::batch::{BatchLayout, Dtype, FieldLayout};
use feedline_loader::plan::trace::Trace;
use feedline_loader::ring::named::Label;
use feedline_loader::ring::{BatchDescriptor, BatchStatus, BatchTicket, RingDescriptors, RingReader, RingWriter};
use feedline_loader::sys::socket;
use rustix::time::{ClockId, clock_gettime};

const SLOTS: u32 = 4;
const ROWS: u32 = 64;
const ROW_BYTES: u32 = 224 * 224 * 3;

/// Number of the field that says when its batch was published.
const STAMP: usize = 1;

/// Rounds that are not counted: the pages of every slot are touched, the processes warm.
const WARM_ROUNDS: u64 = 64;

/// Set for a client; its value is the rounds and the kind of ring.
const CLIENT: &str = "FEEDLINE_BENCH_CLIENT";

struct Arguments {
    clients: Vec<u32>,
    rounds: u64,
    json: bool,
    out: Option<PathBuf>,
}

/// What one setting gave, in nanoseconds, sorted.
struct Outcome {
    ring: &'static str,
    clients: u32,
    latencies_ns: Vec<u64>,
}

impl Outcome {
    fn at(&self, share: f64) -> f64 {
        let place = (self.latencies_ns.len() as f64 * share) as usize;
        self.latencies_ns[place.min(self.latencies_ns.len() - 1)] as f64 / 1e3
    }

    fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "ring": self.ring, "clients": self.clients, "hand_overs": self.latencies_ns.len(),
            "p50_us": self.at(0.5), "p99_us": self.at(0.99), "p99_9_us": self.at(0.999), "max_us": self.at(1.0),
        })
    }
}

fn main() -> ExitCode {
    if let Ok(words) = std::env::var(CLIENT) {
        client(&words);
        return ExitCode::SUCCESS;
    }
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::FAILURE;
        }
    };
    let mut outcomes = Vec::new();
    for &clients in &arguments.clients {
        for ring in ["memfd", "named"] {
            outcomes.push(measure(ring, clients, arguments.rounds));
        }
    }
    let json = serde_json::Value::from(outcomes.iter().map(Outcome::to_json).collect::<Vec<_>>());
    let table = table(&outcomes);
    if arguments.json {
        println!("{json:#}");
    } else {
        println!("{table}");
    }
    if let Some(folder) = &arguments.out {
        std::fs::create_dir_all(folder).expect("make the folder");
        std::fs::write(folder.join("README.md"), readme(&arguments, &table)).expect("write README.md");
        std::fs::write(folder.join("raw.json"), format!("{json:#}\n")).expect("write raw.json");
        eprintln!("written to {}", folder.display());
    }
    ExitCode::SUCCESS
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut arguments = Arguments { clients: vec![1, 4, 8], rounds: 20_000, json: false, out: None };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            // Given by cargo.
            "--bench" => {}
            "--quick" | "--test" => arguments.rounds = 200,
            "--clients" => {
                let list = value()?;
                let counts = list.split(',').map(|count| count.parse::<u32>().ok().filter(|count| *count > 0));
                arguments.clients = counts.collect::<Option<_>>().ok_or(format!("--clients {list}: as in 1,4,8"))?;
            }
            "--rounds" => {
                let text = value()?;
                let rounds = text.parse::<u64>().ok().filter(|rounds| *rounds > 0);
                arguments.rounds = rounds.ok_or(format!("--rounds {text}: a number of at least 1"))?;
            }
            "--json" => arguments.json = true,
            "--out" => arguments.out = Some(out_folder(&value()?)),
            other => return Err(format!("unknown argument {other}; see the head of bench/benches/hand_over.rs")),
        }
    }
    Ok(arguments)
}

fn layout() -> BatchLayout {
    let fields = vec![
        FieldLayout::new("image", Dtype::Uint8, [ROW_BYTES]).expect("field"),
        FieldLayout::new("stamp", Dtype::Int64, []).expect("field"),
    ];
    BatchLayout::new(fields, ROWS, 0).expect("layout")
}

/// Nanoseconds of the clock that all processes share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn ticket(sequence: u64) -> BatchTicket {
    BatchTicket::new(0, sequence).expect("in bounds")
}

/// One client, from this side.
struct Lane {
    writer: Arc<RingWriter>,
    socket: UnixStream,
    process: Child,
    /// What the kernel says of the process.
    stat: File,
}

impl Lane {
    fn start(ring: &str, rounds: u64) -> Self {
        let (writer, descriptors) = match ring {
            "named" => {
                let label = Label { job: "hand-over", rank: 0, batches_per_epoch: rounds };
                RingWriter::create_named(&layout(), SLOTS, &label)
            }
            _ => RingWriter::create(&layout(), SLOTS),
        }
        .expect("memory for a ring");
        let (socket, far) = UnixStream::pair().expect("pair");
        let process = Command::new(std::env::current_exe().expect("this benchmark"))
            .env(CLIENT, format!("{rounds} {ring}"))
            .stdin(Stdio::from(OwnedFd::from(far)))
            .spawn()
            .expect("start a client");
        let sent = [descriptors.payload.as_fd(), descriptors.control.as_fd(), descriptors.freed.as_fd()];
        assert_eq!(socket::send(socket.as_fd(), b"R", &sent).expect("send"), 1);
        let stat = File::open(format!("/proc/{}/stat", process.id())).expect("it lives");
        Self { writer: Arc::new(writer), socket, process, stat }
    }

    /// Whether the kernel has put the client to sleep: its own word comes a moment before.
    fn is_asleep(&self) -> bool {
        let mut words = [0; 64];
        let len = self.stat.read_at(&mut words, 0).unwrap_or(0);
        self.writer.client_waiting() && String::from_utf8_lossy(&words[..len]).contains(") S ")
    }

    /// Waits until the client sleeps; it has then given back what it had.
    fn wait_asleep(&mut self) {
        while !self.is_asleep() || self.writer.slots_by_state().free < SLOTS {
            let ended = self.process.try_wait().expect("wait");
            assert!(ended.is_none(), "a client ended early: {ended:?}");
            std::thread::yield_now();
        }
    }

    fn publish(&self, sequence: u64) {
        let slot = self.writer.acquire().expect("sound").expect("free");
        let descriptor = BatchDescriptor {
            ticket: ticket(sequence),
            epoch: 0,
            batch_index: sequence,
            first_position: 0,
            end_position: 0,
            row_count: ROWS,
            status: BatchStatus::Ok,
            fault_count: 0,
            trace: Trace::default(),
        };
        slot.store(STAMP, 0, &now_ns().to_ne_bytes());
        slot.publish(descriptor, None);
    }

    /// The client's figures, once it has ended.
    fn finish(mut self) -> Vec<u64> {
        let mut bytes = Vec::new();
        self.socket.read_to_end(&mut bytes).expect("read");
        assert!(self.process.wait().expect("wait").success());
        bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes"))).collect()
    }
}

fn measure(ring: &'static str, clients: u32, rounds: u64) -> Outcome {
    let total = rounds + WARM_ROUNDS;
    let mut lanes: Vec<_> = (0..clients).map(|_| Lane::start(ring, total)).collect();
    for sequence in 0..total {
        lanes.iter_mut().for_each(Lane::wait_asleep);
        lanes.iter().for_each(|lane| lane.publish(sequence));
    }
    let mut latencies_ns: Vec<u64> = lanes.into_iter().flat_map(Lane::finish).collect();
    assert_eq!(latencies_ns.len() as u64, rounds * u64::from(clients), "every hand-over is counted");
    latencies_ns.sort_unstable();
    Outcome { ring, clients, latencies_ns }
}

/// The other process: sleeps for each batch in turn, notes how long ago it was published.
fn client(words: &str) {
    let (total, ring) = words.split_once(' ').expect("rounds and kind");
    let total: u64 = total.parse().expect("rounds");
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().expect("duplicate"));
    let received = socket::receive(socket.as_fd(), &mut [0]).expect("receive");
    let [payload, control, freed] = received.descriptors.try_into().expect("three descriptors");
    let map = if ring == "named" { RingReader::map_named } else { RingReader::map };
    let reader = map(RingDescriptors { payload, control, freed }, &layout(), SLOTS).expect("map");
    let mut latencies_ns = Vec::with_capacity(total as usize);
    let mut images = vec![0; ROWS as usize * ROW_BYTES as usize];
    for sequence in 0..total {
        let held = loop {
            let seen = reader.signal();
            if let Some(held) = reader.take(ticket(sequence)).expect("sound") {
                break held;
            }
            reader.wait(seen, Duration::from_millis(100)).expect("wait");
        };
        let taken_ns = now_ns();
        let mut stamps = [0; ROWS as usize * 8];
        held.copy_field(STAMP, &mut stamps).expect("here");
        latencies_ns.push(taken_ns - u64::from_ne_bytes(stamps[..8].try_into().expect("8 bytes")));
        if sequence < WARM_ROUNDS {
            held.copy_field(0, &mut images).expect("here");
        }
        drop(held);
    }
    let counted = latencies_ns[WARM_ROUNDS as usize..].iter().flat_map(|latency| latency.to_ne_bytes());
    socket.write_all(&counted.collect::<Vec<_>>()).expect("write");
}

/// One row a setting, in Markdown.
fn table(outcomes: &[Outcome]) -> String {
    let mut text = "| Ring | Clients | p50 | p99 | p99.9 | most, µs |\n|---|---|---|---|---|---|\n".to_owned();
    for outcome in outcomes {
        let [median, high, higher, most] = [0.5, 0.99, 0.999, 1.0].map(|share| outcome.at(share));
        let _ = writeln!(
            text,
            "| {} | {} | {median:.1} | {high:.1} | {higher:.1} | {most:.1} |",
            outcome.ring, outcome.clients
        );
    }
    text.trim_end().to_owned()
}

/// The page that explains a kept run.
fn readme(arguments: &Arguments, table: &str) -> String {
    let said = |program: &str, words: &[&str]| {
        let output = Command::new(program).args(words).output().ok().filter(|output| output.status.success());
        output.map_or("unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    format!(
        "# Hand-over of a batch to a sleeping process\n\n\
         Question: how long does a finished batch take to reach the process that sleeps for it? From just before it is \
         published until it is taken; {rounds} rounds, in each of which all clients sleep and then get a batch each, one \
         after the other.\n\n\
         - Machine: {cores} cores; {model}; {kernel}.\n\
         - Commit {commit}.\n\
         - Command: `cargo bench -p feedline-bench --bench hand_over -- {command}`\n\n\
         {table}\n",
        rounds = arguments.rounds,
        cores = std::thread::available_parallelism().map_or(0, usize::from),
        model = said("sh", &["-c", "sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1"]),
        kernel = said("uname", &["-sr"]),
        commit = said("git", &["describe", "--always", "--dirty"]),
        command = std::env::args().skip(1).filter(|word| word != "--bench").collect::<Vec<_>>().join(" "),
    )
}
