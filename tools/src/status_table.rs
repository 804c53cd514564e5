//! The status of sidecars as text for a person: a few lines and a table each.

use std::fmt::Write;

use feedline_loader::serve::status::{ServiceState, ServiceStatus, StreamStatus};

use crate::output::{Bytes, counted};

/// Whether text may be coloured: only a terminal shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Paint {
    /// With escape codes.
    Colours,
    /// Without.
    Plain,
}

const BOLD: &str = "1";
const RED: &str = "31";
const YELLOW: &str = "33";

/// Share of its time that a trainer may wait before it is shown in colour.
const WAITING_SHARE: f64 = 0.05;

impl Paint {
    fn on(self, code: &str, text: &str) -> String {
        match self {
            Self::Colours if !code.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

/// One place of the table.
struct Cell {
    text: String,
    colour: &'static str,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self { text, colour: "" }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Align {
    Left,
    Right,
}

const COLUMNS: [(&str, Align); 15] = [
    ("JOB", Align::Left),
    ("RANK", Align::Right),
    ("PID", Align::Right),
    ("UID", Align::Right),
    ("SAMPLES", Align::Right),
    ("EPOCH", Align::Right),
    ("POSITION", Align::Right),
    ("ROWS/S", Align::Right),
    ("MEAN", Align::Right),
    ("WAITING", Align::Left),
    ("FREE", Align::Right),
    ("FILL", Align::Right),
    ("READY", Align::Right),
    ("HELD", Align::Right),
    ("FAULTS", Align::Right),
];

/// The status of `sidecars`, one after the other.
pub fn render(sidecars: &[ServiceStatus], paint: Paint) -> String {
    sidecars.iter().map(|sidecar| render_one(sidecar, paint)).collect::<Vec<_>>().join("\n")
}

fn render_one(status: &ServiceStatus, paint: Paint) -> String {
    let ServiceStatus { version, pid, socket, workers, reader, memory, connections, .. } = status;
    let state = match status.state {
        ServiceState::Serving => String::new(),
        ServiceState::Draining => paint.on(YELLOW, ", shutting down"),
    };
    let private = if status.private { ", private" } else { "" };
    let mut text = format!(
        "{}: process {pid}, version {version}, up {}{private}{state}\n",
        paint.on(BOLD, &socket.display().to_string()),
        duration(status.uptime_s)
    );
    let _ = writeln!(text, "  {}, {reader}", counted((*workers).into(), "decode thread"));
    let refused = match connections.refused {
        0 => String::new(),
        count => paint.on(RED, &format!(", {count} refused")),
    };
    let _ = writeln!(
        text,
        "  memory: {} resident ({} own, {} shared), {} of rings, {} of arena; {} of at most {}{refused}",
        Bytes(memory.resident_bytes),
        Bytes(memory.anonymous_bytes),
        Bytes(memory.shared_bytes),
        Bytes(memory.ring_bytes),
        Bytes(memory.arena_bytes),
        counted(connections.open.into(), "connection"),
        connections.limit
    );
    if status.streams.is_empty() {
        text.push_str("  no streams\n");
        return text;
    }
    let header = COLUMNS.map(|(name, _)| Cell { text: name.to_owned(), colour: BOLD });
    let rows: Vec<_> = std::iter::once(header).chain(status.streams.iter().map(row)).collect();
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(|column| rows.iter().map(|row| row[column].text.chars().count()).max().unwrap_or(0))
        .collect();
    for row in &rows {
        let mut line = String::from(" ");
        for ((cell, (_, align)), &width) in row.iter().zip(COLUMNS).zip(&widths) {
            let padding = " ".repeat(width - cell.text.chars().count());
            let text = paint.on(cell.colour, &cell.text);
            let _ = match align {
                Align::Left => write!(line, " {text}{padding} "),
                Align::Right => write!(line, " {padding}{text} "),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    for stream in &status.streams {
        if let Some(age) = stream.snapshot_age_s {
            let (job, rank) = (printable(&stream.job), stream.rank);
            let _ = writeln!(text, "  {job}, rank {rank}: its LMDB snapshot is {} old", duration(age));
        }
    }
    text
}

fn row(stream: &StreamStatus) -> [Cell; COLUMNS.len()] {
    let slots = &stream.slots;
    let faults: u64 = stream.faults.values().sum();
    [
        printable(&stream.job).into(),
        format!("{}/{}", stream.rank, stream.world_size).into(),
        stream.pid.map_or("-".to_owned(), |pid| pid.to_string()).into(),
        stream.uid.to_string().into(),
        stream.samples.to_string().into(),
        stream.epoch.to_string().into(),
        format!("{}/{}", stream.position, stream.epoch_positions).into(),
        format!("{:.0}", stream.rows_per_s).into(),
        format!("{:.0}", stream.rows_per_s_overall).into(),
        waiting(stream),
        slots.free.to_string().into(),
        slots.filling.to_string().into(),
        slots.ready.to_string().into(),
        slots.held.to_string().into(),
        Cell { text: faults.to_string(), colour: if faults > 0 { RED } else { "" } },
    ]
}

/// The share of its time that the trainer waited, and the cause of most of it.
fn waiting(stream: &StreamStatus) -> Cell {
    let all: f64 = stream.waiting_s.values().sum();
    let most = stream.waiting_s.iter().max_by(|left, right| left.1.total_cmp(right.1));
    let share = if stream.open_s > 0.0 { all / stream.open_s } else { 0.0 };
    let text = match most {
        Some((cause, seconds)) if *seconds > 0.0 => format!("{:.0}% {cause}", share * 100.0),
        _ => "0%".to_owned(),
    };
    Cell { text, colour: if share > WAITING_SHARE { YELLOW } else { "" } }
}

/// A name that a client chose, without what a terminal would obey.
fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A duration in its two largest units.
fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min {} s", seconds % 60),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use feedline_loader::serve::status::{ConnectionStatus, MemoryStatus, SlotStatus};

    use super::*;

    fn stream(job: &str, rank: u32, waited: f64) -> StreamStatus {
        StreamStatus {
            job: job.to_owned(),
            rank,
            world_size: 16,
            pid: (rank != 0).then_some(4711),
            uid: 1000,
            open_s: 100.0,
            shards: 4,
            samples: 1_281_167,
            epoch: 3,
            position: 4096,
            epoch_positions: 1_281_167,
            batch: 8,
            batches_per_epoch: 2503,
            batch_size: 32,
            batches: 40,
            rows: 1280,
            rows_per_s: 1234.4,
            rows_per_s_overall: 12.8,
            waiting_s: [("storage".to_owned(), waited), ("decode".to_owned(), waited / 2.0)].into(),
            full_s: 1.0,
            slots: SlotStatus { free: 1, filling: 2, ready: 3, held: 10 },
            ring_bytes: 1 << 20,
            faults: if rank == 0 { [("corrupt".to_owned(), 12)].into() } else { Default::default() },
            replaced: 12,
            snapshot_age_s: (rank == 0).then_some(4000.0),
        }
    }

    fn status(streams: Vec<StreamStatus>) -> ServiceStatus {
        ServiceStatus {
            version: "0.1.0".into(),
            pid: 42,
            socket: "/run/feedline.sock".into(),
            state: ServiceState::Serving,
            private: false,
            uptime_s: 90_061.0,
            workers: 1,
            reader: "pread".into(),
            memory: MemoryStatus::default(),
            connections: ConnectionStatus { open: 2, limit: 1024, refused: 0 },
            stages: Default::default(),
            streams,
        }
    }

    #[test]
    fn columns_line_up() {
        let text = render(&[status(vec![stream("résumé\x1b[2J", 0, 20.0), stream("x", 11, 0.0)])], Paint::Plain);
        assert!(!text.contains('\x1b'), "{text}");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "/run/feedline.sock: process 42, version 0.1.0, up 1 d 1 h");
        let table = &lines[3..6];
        let end_of = |line: &str, word: &str| {
            let at = line.find(word).unwrap_or_else(|| panic!("{word} is not in {line}"));
            line[..at + word.len()].chars().count()
        };
        for (column, words) in [("RANK", ["0/16", "11/16"]), ("PID", ["-", "4711"]), ("POSITION", ["4096/1281167"; 2])]
        {
            for (line, word) in table[1..].iter().zip(words) {
                assert_eq!(end_of(line, word), end_of(table[0], column), "{column}:\n{text}");
            }
        }
        assert!(table[1].contains("résumé?[2J") && table[1].contains("30% storage"), "{text}");
        assert!(table[2].contains(" 0% "), "{text}");
        assert!(table[1].ends_with("12") && table[2].ends_with('0'), "{text}");
        assert!(lines[6].contains("1 h 6 min old") && lines.len() == 7, "{text}");
    }

    #[test]
    fn colours_are_for_terminals_and_move_nothing() {
        let streams = vec![stream("a", 0, 20.0), stream("b", 1, 0.0)];
        let (plain, coloured) =
            (render(&[status(streams.clone())], Paint::Plain), render(&[status(streams)], Paint::Colours));
        assert!(
            coloured.contains("\x1b[31m12\x1b[0m") && coloured.contains("\x1b[33m30% storage\x1b[0m"),
            "{coloured}"
        );
        let mut stripped = coloured;
        for code in [BOLD, RED, YELLOW, "0"] {
            stripped = stripped.replace(&format!("\x1b[{code}m"), "");
        }
        assert_eq!(stripped, plain);
        assert!(render(&[status(Vec::new())], Paint::Plain).ends_with("no streams\n"));
    }

    #[test]
    fn durations_have_two_units() {
        let check = |seconds, expected| assert_eq!(duration(seconds), expected);
        check(0.9, "0 s");
        check(59.0, "59 s");
        check(61.0, "1 min 1 s");
        check(3660.0, "1 h 1 min");
        check(86_400.0 * 21.0 + 7200.0, "21 d 2 h");
        check(-1.0, "0 s");
    }
}
