//! The unpacked bytes of compressed streams that follow each other in one file, as parallel compressors and `cat` leave them.
//!
//! Zeros between and behind them are passed over, as by gzip and by Python's gzip: tapes and blocks are filled up with them.
//! Anything else between streams is an error that says where.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::atomic::AtomicBool;

use flate2::bufread::GzDecoder;
use liblzma::bufread::XzDecoder;
use zstd::stream::read::Decoder as ZstdDecoder;

use super::compressed::Compression;
use super::window::check_wanted;

/// Bytes read from the file at a time.
const READ_BYTES: usize = 1 << 20;

/// A file that is read forwards, and how far.
struct Packed {
    file: BufReader<File>,
    offset: u64,
}

impl Read for Packed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.offset += count as u64;
        Ok(count)
    }
}

impl BufRead for Packed {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.file.fill_buf()
    }

    fn consume(&mut self, count: usize) {
        self.offset += count as u64;
        self.file.consume(count);
    }
}

/// One stream. Each decoder takes no byte of the file behind its own.
enum Stream {
    Gzip(Box<GzDecoder<Packed>>),
    Zstd(ZstdDecoder<'static, Packed>),
    Xz(XzDecoder<Packed>),
}

impl Stream {
    fn open(compression: Compression, packed: Packed) -> io::Result<Self> {
        Ok(match compression {
            Compression::Gzip => Self::Gzip(Box::new(GzDecoder::new(packed))),
            Compression::Zstd => Self::Zstd(ZstdDecoder::with_buffer(packed)?.single_frame()),
            Compression::Xz => Self::Xz(XzDecoder::new(packed)),
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(decoder) => decoder.read(buffer).map_err(explained),
            Self::Xz(decoder) => decoder.read(buffer),
        }
    }

    fn close(self) -> Packed {
        match self {
            Self::Gzip(decoder) => decoder.into_inner(),
            Self::Zstd(decoder) => decoder.finish(),
            Self::Xz(decoder) => decoder.into_inner(),
        }
    }
}

/// zstd's own words for a window that it may not have leave the way out to the reader.
fn explained(error: io::Error) -> io::Error {
    if error.to_string().contains("too much memory") {
        return io::Error::other(
            "it was packed with a window of over 128 MiB (zstd --long), which is not unpacked here; pack it again with \
             --long=27 or less",
        );
    }
    error
}

enum State {
    Between(Packed),
    Within(Stream),
    Over,
    /// It failed so, and will again: a decoder that is asked once more may say that its stream is over.
    Failed(Failure),
}

/// An error that can be told again.
enum Failure {
    System(i32),
    Other(io::ErrorKind, String),
}

impl Failure {
    fn of(error: &io::Error) -> Self {
        error.raw_os_error().map_or_else(|| Self::Other(error.kind(), error.to_string()), Self::System)
    }

    fn tell(&self) -> io::Error {
        match self {
            Self::System(code) => io::Error::from_raw_os_error(*code),
            Self::Other(kind, message) => io::Error::new(*kind, message.clone()),
        }
    }
}

/// All streams of a file as one. Reads fail once `stop` is set.
pub(super) struct Streams<'a> {
    compression: Compression,
    state: State,
    stop: &'a AtomicBool,
}

impl<'a> Streams<'a> {
    /// Starts at the first byte of `file`.
    pub(super) fn new(file: File, compression: Compression, stop: &'a AtomicBool) -> Self {
        let packed = Packed { file: BufReader::with_capacity(READ_BYTES, file), offset: 0 };
        Self { compression, state: State::Between(packed), stop }
    }

    /// Goes over zeros to the next stream; `false` at the end of the file.
    fn find_next(&self, packed: &mut Packed) -> io::Result<bool> {
        loop {
            check_wanted(self.stop)?;
            let bytes = packed.fill_buf()?;
            let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
            match bytes.get(zeros) {
                None if bytes.is_empty() => return Ok(false),
                None => packed.consume(zeros),
                Some(&first) => {
                    packed.consume(zeros);
                    return if self.compression.begins_with(first) { Ok(true) } else { Err(self.stray(packed)) };
                }
            }
        }
    }

    fn stray(&self, packed: &Packed) -> io::Error {
        let name = self.compression.name();
        let message = format!(
            "at byte {} of the file, behind the end of a {name} stream, come bytes that are neither zeros nor another such \
             stream; cut them off, or pack the shard again",
            packed.offset
        );
        io::Error::new(io::ErrorKind::InvalidData, message)
    }
}

impl Streams<'_> {
    fn read_on(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Between(mut packed) => {
                    if self.find_next(&mut packed)? {
                        self.state = State::Within(Stream::open(self.compression, packed)?);
                    }
                }
                State::Within(mut stream) => match stream.read(buffer) {
                    Ok(0) => self.state = State::Between(stream.close()),
                    // The same stream is asked again, where a signal came between.
                    read => {
                        self.state = State::Within(stream);
                        return read;
                    }
                },
                State::Over => return Ok(0),
                State::Failed(failure) => return Err(failure.tell()),
            }
        }
    }
}

impl Read for Streams<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let read = self.read_on(buffer);
        if let Err(error) = &read
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.state = State::Failed(Failure::of(error));
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use super::super::compressed::tests::packed;
    use super::*;

    fn unpacked(bytes: &[u8], compression: Compression) -> io::Result<Vec<u8>> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        file.rewind().expect("a plain file");
        let go = AtomicBool::new(false);
        let mut streams = Streams::new(file, compression, &go);
        let mut found = Vec::new();
        let read = streams.read_to_end(&mut found);
        if let Err(error) = &read {
            let again = streams.read(&mut [0; 8]).expect_err("it fails for good").to_string();
            assert_eq!(again, error.to_string());
        }
        read.map(|_| found)
    }

    #[test]
    fn zeros_between_and_behind_streams_are_passed_over() {
        for compression in [Compression::Gzip, Compression::Zstd, Compression::Xz] {
            let (one, two) = (packed(compression, &[7; 3000]), packed(compression, b"two"));
            let both = [&[7; 3000][..], b"two"].concat();
            let check = |parts: &[&[u8]], expected: &[u8]| {
                let found = unpacked(&parts.concat(), compression).expect("sound");
                assert!(found == expected, "{compression:?}: {} bytes", found.len());
            };
            check(&[&one], &[7; 3000]);
            check(&[&one, &two], &both);
            check(&[&one, &[0; 3]], &[7; 3000]);
            check(&[&one, &[0; 9999], &two, &[0; 3 << 20]], &both);
            check(&[&one, &packed(compression, b""), &two], &both);
        }
    }

    #[test]
    fn other_bytes_behind_a_stream_are_told_with_their_place() {
        for compression in [Compression::Gzip, Compression::Zstd, Compression::Xz] {
            let one = packed(compression, &[7; 3000]);
            let check = |junk: &[u8], part: &str| {
                let error = unpacked(&[&one, junk].concat(), compression).expect_err("junk").to_string();
                assert!(error.contains(part), "{compression:?}: {error}");
            };
            check(b"junk", &format!("at byte {} of the file", one.len()));
            check(b"\0\0\0\0\0x", &format!("at byte {} of the file", one.len() + 5));
            // A stream that is cut off, however far in, is never taken for a whole one.
            for cut in 1..one.len() {
                assert!(unpacked(&one[..cut], compression).is_err(), "{compression:?} cut at {cut}");
                assert!(unpacked(&[&one, &one[..cut]].concat(), compression).is_err(), "{compression:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn a_wrong_check_value_is_an_error_for_good() {
        // zstd's frames have none unless asked.
        for compression in [Compression::Gzip, Compression::Xz] {
            let mut damaged = packed(compression, &[7; 3000]);
            let in_the_trailer = damaged.len() - 6;
            damaged[in_the_trailer] ^= 0x10;
            assert!(unpacked(&damaged, compression).is_err(), "{compression:?}");
        }
    }

    #[test]
    fn what_nobody_waits_for_is_not_read() {
        let stop = AtomicBool::new(true);
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&[0; 100]).expect("written");
        file.rewind().expect("a plain file");
        assert!(Streams::new(file, Compression::Gzip, &stop).read(&mut [0; 8]).is_err());
    }
}
