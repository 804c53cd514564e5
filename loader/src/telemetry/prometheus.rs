//! Metrics as text in the Prometheus exposition format, version 0.0.4.

use std::fmt::Write;

use super::counters::{StageFigures, StreamFigures};

/// One stream's labels and figures.
#[derive(Debug, Clone)]
pub struct MetricsStream {
    /// The job's name.
    pub job: String,
    /// The client's rank.
    pub rank: u32,
    /// Its figures.
    pub figures: StreamFigures,
}

/// Renders all metrics. Names and labels are stable; they are part of the interface.
pub fn render(stages: &StageFigures, streams: &[MetricsStream]) -> String {
    let mut text = String::new();
    let mut single = |name: &str, kind: &str, help: &str, value: f64| {
        header(&mut text, name, kind, help);
        let _ = writeln!(text, "{name} {value}");
    };
    single("feedline_workers", "gauge", "Decode threads.", f64::from(stages.workers));
    single("feedline_worker_busy_seconds_total", "counter", "Time that decode threads were busy.", stages.busy_s);
    single("feedline_uptime_seconds", "gauge", "Time since the sidecar started.", stages.uptime_s);
    single(
        "feedline_reads_in_flight",
        "gauge",
        "Reads submitted and not completed.",
        f64::from(stages.reads_in_flight),
    );
    single("feedline_decode_queue_rows", "gauge", "Rows waiting for a worker.", f64::from(stages.decode_queue));
    single(
        "feedline_oversized_reads_total",
        "counter",
        "Reads that the arena could not serve.",
        stages.oversized_reads as f64,
    );
    single("feedline_cached_bytes", "gauge", "Encoded samples kept in memory.", stages.cached_bytes as f64);
    if let Some(bytes) = stages.memory_limit_bytes {
        single("feedline_memory_limit_bytes", "gauge", "Bound of the memory that is reserved.", bytes as f64);
    }
    single("feedline_streams", "gauge", "Open streams.", streams.len() as f64);

    header(&mut text, "feedline_memory_bytes", "gauge", "Memory that is reserved, by part.");
    for (part, bytes) in &stages.memory_bytes {
        let _ = writeln!(text, "feedline_memory_bytes{{part=\"{part}\"}} {bytes}");
    }

    let mut per_stream = |name: &str, kind: &str, help: &str, value: fn(&StreamFigures) -> f64| {
        header(&mut text, name, kind, help);
        for stream in streams {
            let _ = writeln!(text, "{name}{{{}}} {}", labels(stream), value(&stream.figures));
        }
    };
    per_stream("feedline_rows_total", "counter", "Rows stored into slots.", |f| f.rows as f64);
    per_stream("feedline_batches_total", "counter", "Batches published.", |f| f.batches as f64);
    per_stream("feedline_read_bytes_total", "counter", "Bytes read from shards.", |f| f.read_bytes as f64);
    per_stream("feedline_reads_total", "counter", "Reads completed.", |f| f.reads as f64);
    per_stream("feedline_cached_rows_total", "counter", "Rows whose bytes were kept in memory.", |f| {
        f.cached_rows as f64
    });
    per_stream("feedline_cached_bytes_total", "counter", "Bytes that were kept in memory and not read.", |f| {
        f.cached_bytes as f64
    });
    per_stream("feedline_read_seconds_total", "counter", "Time of reads in flight, summed over reads.", |f| f.read_s);
    per_stream("feedline_decode_seconds_total", "counter", "Time of workers, summed over workers.", |f| f.decode_s);
    per_stream("feedline_rows_replaced_total", "counter", "Rows that a substitute fills.", |f| f.replaced as f64);
    per_stream("feedline_rows_defaulted_total", "counter", "Rows in which a missing field has its default.", |f| {
        f.defaulted as f64
    });
    per_stream("feedline_rows_odd_total", "counter", "Rows with a JPEG in which oddities were passed over.", |f| {
        f.odd as f64
    });
    per_stream("feedline_batches_spilled_total", "counter", "Batches whose values found no room in their slot.", |f| {
        f.spilled_batches as f64
    });
    per_stream("feedline_spilled_bytes_total", "counter", "Bytes of values that found no room in a slot.", |f| {
        f.spilled_bytes as f64
    });
    per_stream("feedline_ring_full_seconds_total", "counter", "Time with every slot ready or held (sampled).", |f| {
        f.full_s
    });

    header(
        &mut text,
        "feedline_client_waiting_seconds_total",
        "counter",
        "Time the client waited, by cause (sampled).",
    );
    for stream in streams {
        for (cause, seconds) in &stream.figures.waiting_s {
            let labels = labels(stream);
            let _ = writeln!(text, "feedline_client_waiting_seconds_total{{{labels},cause=\"{cause}\"}} {seconds}");
        }
    }
    header(
        &mut text,
        "feedline_bad_samples_total",
        "counter",
        "Samples that could not be used, or only in part (lenient), by class.",
    );
    for stream in streams {
        for (class, count) in &stream.figures.faults {
            let _ = writeln!(text, "feedline_bad_samples_total{{{},class=\"{class}\"}} {count}", labels(stream));
        }
    }
    text
}

fn header(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn labels(stream: &MetricsStream) -> String {
    let job = stream.job.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    format!("job=\"{job}\",rank=\"{}\"", stream.rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_every_sample_has_a_type() {
        let mut figures = StreamFigures { rows: 7, ..StreamFigures::default() };
        figures.faults.insert("corrupt".into(), 2);
        let stream = MetricsStream { job: "a\"b\n".into(), rank: 3, figures };
        let text = render(&StageFigures::default(), &[stream]);
        assert!(text.contains("feedline_rows_total{job=\"a\\\"b\\n\",rank=\"3\"} 7\n"), "{text}");
        assert!(
            text.contains("feedline_bad_samples_total{job=\"a\\\"b\\n\",rank=\"3\",class=\"corrupt\"} 2\n"),
            "{text}"
        );
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(text.contains(&format!("# TYPE {name} ")), "{name} has no type");
        }
    }
}
