//! What travels over the control socket: frames of versioned JSON, with descriptors beside some of them.
//!
//! A frame is a little-endian u32 length and that many bytes of JSON. Both sides bound the length before they
//! allocate. Descriptors ride on the first byte of their frame.

use serde::{Deserialize, Serialize};

use super::status::ServiceStatus;
use crate::batch::BatchLayout;
use crate::error::{Error, ErrorKind, Result};
use crate::shard::DatabaseState;
use crate::spec::{JobSpec, Tail};
use crate::telemetry::StreamFigures;

/// Version of the protocol; other versions are refused by name.
pub const PROTOCOL_VERSION: u32 = 1;

/// Longest frame in bytes: a job of 100 000 shards fits.
pub const FRAME_BYTES_MAX: usize = 16 << 20;

/// Bytes of a frame's length.
pub const FRAME_HEADER_BYTES: usize = 4;

/// From client to sidecar.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ClientMessage {
    /// First message of every connection.
    Hello {
        /// [`PROTOCOL_VERSION`].
        protocol: u32,
        /// The crate's version, for messages.
        version: String,
    },
    /// Opens a stream of batches; at most one a connection.
    Open {
        /// What is asked for.
        spec: Box<JobSpec>,
        /// Number of u64 sample numbers in the attached memfd, when a subset is asked for.
        indices: Option<u64>,
        /// Number of f64 weights in the attached memfd, when samples are drawn by weight.
        weights: Option<u64>,
        /// Bytes of the list of samples to leave out in the attached memfd; the spec has its hash.
        #[serde(default)]
        quarantine: Option<u64>,
    },
    /// Deliver `epoch` from global `position` on, as `generation`; batches of older generations are void.
    Seek {
        /// Counted up by the client, so that late batches are told apart.
        generation: u32,
        /// Epoch number.
        epoch: u64,
        /// Global samples of the epoch that are left out at its start.
        position: u64,
    },
    /// Asks for [`ServerMessage::Figures`].
    Figures,
    /// Asks for [`ServerMessage::Status`]; needs no stream.
    Status,
}

/// From sidecar to client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ServerMessage {
    /// Answer to a hello.
    Welcome {
        /// [`PROTOCOL_VERSION`].
        protocol: u32,
        /// The crate's version.
        version: String,
        /// The sidecar's process, for messages.
        pid: u32,
    },
    /// Progress of the index while a stream opens.
    Indexing {
        /// Shards that are done.
        shards_done: u64,
        /// All shards.
        shards_total: u64,
        /// Samples found so far.
        samples: u64,
    },
    /// The stream is open; the ring's payload, control page and release signal ride along.
    Opened {
        /// What the client needs to know of it.
        info: Box<StreamInfo>,
    },
    /// The counters of this stream.
    Figures {
        /// Since the stream was opened.
        figures: Box<StreamFigures>,
    },
    /// A batch that is ready, or will be at once, has values that its slot has no room for; their memory rides along.
    Spilled {
        /// Stream number of the batch.
        generation: u32,
        /// Its number in the stream.
        sequence: u64,
        /// Bytes of the memory.
        bytes: u32,
    },
    /// What the service does.
    Status {
        /// At this moment.
        status: Box<ServiceStatus>,
    },
    /// The sidecar shuts down. It finishes the batches of this generation before `sequence`; that one and later ones never
    /// come. Answered again, for the new generation, to a seek that crosses it.
    Draining {
        /// Why: the signal's name.
        reason: String,
        /// The stream number that it is about.
        generation: u32,
        /// The first batch that does not come.
        sequence: u64,
    },
    /// The last message of a stream: it ended with an error.
    Failed {
        /// What the caller can do.
        kind: ErrorKind,
        /// The error's words.
        message: String,
    },
}

/// What an open stream is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StreamInfo {
    /// Samples of the dataset.
    pub sample_count: u64,
    /// Positions of an epoch's order, before the tail rule.
    pub epoch_positions: u64,
    /// This rank's batches in a whole epoch.
    pub batches_per_epoch: u64,
    /// Rows of a global batch: batch size times world size.
    pub global_batch: u64,
    /// What becomes of the last samples.
    pub tail: Tail,
    /// Positions of an epoch that the tail rule leaves out.
    pub left_out: u64,
    /// Rows that the tail rule repeats.
    pub repeated: u64,
    /// Samples in quarantine.
    pub quarantined: u64,
    /// Samples that are left out because they lack a field, those in quarantine not counted again.
    #[serde(default)]
    pub dropped: u64,
    /// The databases among the shards, as they were opened.
    #[serde(default)]
    pub databases: Vec<DatabaseState>,
    /// Names of the classes, where a `classes.json` lies beside the shards.
    pub classes: Option<Vec<String>>,
    /// Where each field lies in a slot.
    pub layout: BatchLayout,
    /// Slots of the ring.
    pub slot_count: u32,
    /// Things worth telling that are no errors.
    pub notices: Vec<String>,
    /// Decode threads of the sidecar.
    pub workers: u32,
    /// How shards are read, and why so.
    pub reader: String,
    /// Which libraries decode images, in which version, and with which choices.
    #[serde(default)]
    pub decoder: String,
    /// The sidecar's process.
    pub sidecar_pid: u32,
    /// The ring's name, where it has one: its segments are this and `.slots` or `.control`.
    #[serde(default)]
    pub ring_name: Option<String>,
}

impl StreamInfo {
    /// This rank's batches from global `position` to the end of an epoch.
    pub fn batches_from(&self, position: u64) -> u64 {
        let remaining = self.epoch_positions.saturating_sub(position);
        match self.tail {
            // The other side's word may be 0.
            Tail::Drop => remaining / self.global_batch.max(1),
            Tail::Short | Tail::Pad => remaining.div_ceil(self.global_batch.max(1)),
        }
    }
}

/// Encodes `message` as one frame.
pub fn encode(message: &impl Serialize) -> Result<Vec<u8>> {
    let mut frame = vec![0; FRAME_HEADER_BYTES];
    serde_json::to_writer(&mut frame, message)
        .map_err(|error| Error::protocol(format!("cannot encode a message: {error}")))?;
    let length = frame.len() - FRAME_HEADER_BYTES;
    if length > FRAME_BYTES_MAX {
        return Err(Error::protocol(format!("a message of {length} bytes exceeds the limit of {FRAME_BYTES_MAX}")));
    }
    let length = u32::try_from(length).expect("FRAME_BYTES_MAX fits u32");
    frame[..FRAME_HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Takes one frame off the front of `bytes`, once it is whole.
pub fn decode<T: for<'de> Deserialize<'de>>(bytes: &mut Vec<u8>) -> Result<Option<T>> {
    let Some(header) = bytes.first_chunk::<FRAME_HEADER_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*header) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(Error::protocol(format!(
            "the peer announced a message of {length} bytes, over the limit of {FRAME_BYTES_MAX}"
        )));
    }
    let end = FRAME_HEADER_BYTES + length;
    if bytes.len() < end {
        return Ok(None);
    }
    let message = serde_json::from_slice(&bytes[FRAME_HEADER_BYTES..end])
        .map_err(|error| Error::protocol(format!("not a message of protocol {PROTOCOL_VERSION}: {error}")))?;
    bytes.drain(..end);
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> ClientMessage {
        ClientMessage::Hello { protocol: PROTOCOL_VERSION, version: "0".into() }
    }

    #[test]
    fn frames_survive_any_cut() {
        let mut wire = encode(&hello()).unwrap();
        wire.extend(encode(&ClientMessage::Figures).unwrap());
        let mut received = Vec::new();
        let mut count = 0;
        for byte in wire {
            received.push(byte);
            while decode::<ClientMessage>(&mut received).unwrap().is_some() {
                count += 1;
            }
        }
        assert_eq!((count, received.len()), (2, 0));
    }

    #[test]
    fn a_long_frame_is_refused_before_it_is_stored() {
        let mut bytes = u32::MAX.to_le_bytes().to_vec();
        let error = decode::<ClientMessage>(&mut bytes).unwrap_err();
        assert!(error.to_string().contains("over the limit"), "{error}");
    }

    #[test]
    fn unknown_messages_are_refused() {
        let body = br#"{"type":"shutdown"}"#;
        let mut bytes = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend(body);
        assert!(decode::<ClientMessage>(&mut bytes).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_a_message_an_error_or_wait_for_more(mut bytes: Vec<u8>) {
            let _ = decode::<ClientMessage>(&mut bytes);
        }
    }
}
