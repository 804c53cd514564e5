//! Datasets that are open: one index a node, however many clients use it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::watch;

use super::beside::beside;
use crate::error::{Error, ErrorKind, Result};
use crate::shard::{Dataset, IndexOptions, IndexProgress, Links};
use crate::spec::DatasetRules;

/// Open datasets by their lists of shards and the rules they are understood by. They live as long as a stream uses them.
#[derive(Debug)]
pub(super) struct Datasets {
    cache_dir: Option<PathBuf>,
    links: Links,
    open: Mutex<Vec<Open>>,
    under_way: Mutex<Vec<UnderWay>>,
    next_number: AtomicU64,
}

/// What clients tell datasets apart by.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    shards: Vec<PathBuf>,
    rules: DatasetRules,
}

#[derive(Debug)]
struct Open {
    asked: Asked,
    dataset: Weak<Dataset>,
    at: Instant,
}

/// An opening that is not done.
#[derive(Debug)]
struct UnderWay {
    number: u64,
    asked: Asked,
    wanted: Weak<Wanted>,
    /// Has seen nothing, so that those who join are told the newest at once.
    news: watch::Receiver<News>,
}

/// What became of an opening so far.
#[derive(Debug, Clone)]
pub(super) enum News {
    /// It goes on.
    Progress(IndexProgress),
    /// It is done.
    Opened(Arc<Dataset>),
    /// It is done, with an error of this kind and in these words.
    Failed(ErrorKind, String),
}

/// A client's share in an opening. When the last is dropped, the opening stops.
#[derive(Debug)]
pub(super) struct Opening {
    news: watch::Receiver<News>,
    _wanted: Arc<Wanted>,
}

/// Somebody waits for what is under way; dropped, it tells those who work on it to stop.
#[derive(Debug)]
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Opening {
    /// Waits for the next news.
    pub(super) async fn next(&mut self) -> News {
        match self.news.changed().await {
            Ok(()) => self.news.borrow_and_update().clone(),
            Err(_) => News::Failed(ErrorKind::Interrupted, "the sidecar ends".to_owned()),
        }
    }
}

impl Datasets {
    pub(super) fn new(cache_dir: Option<PathBuf>, links: Links) -> Self {
        Self { cache_dir, links, open: Mutex::default(), under_way: Mutex::default(), next_number: AtomicU64::new(0) }
    }

    /// Opens the dataset of `shards` beside the control plane: anew when it is not open, or when a shard has changed since.
    /// Clients that ask for one dataset while it is being opened share that. Called within the runtime.
    pub(super) fn open(self: &Arc<Self>, shards: &[PathBuf], rules: &DatasetRules) -> Opening {
        let asked = Asked { shards: shards.to_vec(), rules: rules.clone() };
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        let joined = under_way.iter().filter(|other| other.asked == asked).find_map(|other| {
            // What nobody wants any more has been told to stop.
            other.wanted.upgrade().map(|wanted| Opening { news: other.news.clone(), _wanted: wanted })
        });
        if let Some(joined) = joined {
            return joined;
        }
        let nothing = IndexProgress { shards_done: 0, shards_total: shards.len() as u64, samples: 0 };
        let (tell, news) = watch::channel(News::Progress(nothing));
        let stop = Arc::new(AtomicBool::new(false));
        let wanted = Arc::new(Wanted(stop.clone()));
        let number = self.next_number.fetch_add(1, Relaxed);
        let weak = Arc::downgrade(&wanted);
        under_way.push(UnderWay { number, asked: asked.clone(), wanted: weak, news: news.clone() });
        drop(under_way);
        tokio::spawn(self.clone().work(number, asked, tell, stop));
        Opening { news, _wanted: wanted }
    }

    /// Opens a dataset and tells how that goes.
    async fn work(self: Arc<Self>, number: u64, asked: Asked, tell: watch::Sender<News>, stop: Arc<AtomicBool>) {
        let tell = Arc::new(tell);
        let (datasets, progress) = (self.clone(), tell.clone());
        let opened = beside("builds an index", move || {
            let report = |report| {
                progress.send_replace(News::Progress(report));
            };
            datasets.open_now(asked, &report, &stop)
        });
        let opened = opened.await;
        // Who comes from now on looks again: shards may change while nobody reads them.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| other.number != number);
        tell.send_replace(match opened {
            Ok(dataset) => News::Opened(dataset),
            Err(error) => News::Failed(error.kind(), error.to_string()),
        });
    }

    fn open_now(
        &self,
        asked: Asked,
        progress: &(dyn Fn(IndexProgress) + Sync),
        stop: &AtomicBool,
    ) -> Result<Arc<Dataset>> {
        if let Some(dataset) = self.find(&asked).filter(|dataset| dataset.is_current()) {
            return Ok(dataset);
        }
        let (rules, at) = (asked.rules.clone(), Instant::now());
        let options = IndexOptions { cache_dir: self.cache_dir.clone(), threads: None, rules, links: self.links };
        let dataset = Arc::new(Dataset::open_until(&asked.shards, &options, progress, stop)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|other| other.dataset.strong_count() > 0 && other.asked != asked);
        open.push(Open { asked, dataset: Arc::downgrade(&dataset), at });
        Ok(dataset)
    }

    /// When an open dataset was opened: the age of its databases' snapshots.
    pub(super) fn opened_at(&self, dataset: &Arc<Dataset>) -> Option<Instant> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().find(|other| std::ptr::eq(other.dataset.as_ptr(), Arc::as_ptr(dataset))).map(|other| other.at)
    }

    fn find(&self, asked: &Asked) -> Option<Arc<Dataset>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().find(|other| other.asked == *asked).and_then(|other| other.dataset.upgrade())
    }
}

/// Refuses shards outside `roots`; links are followed first. No roots allow everything.
pub(super) fn check_roots(shards: &[PathBuf], roots: &[PathBuf]) -> Result<()> {
    if roots.is_empty() {
        return Ok(());
    }
    let resolve = |path: &Path| std::fs::canonicalize(path).map_err(|source| Error::io("find", path, source));
    let roots = roots.iter().map(|root| resolve(root)).collect::<Result<Vec<_>>>()?;
    for shard in shards {
        let resolved = resolve(shard)?;
        if !roots.iter().any(|root| resolved.starts_with(root)) {
            return Err(Error::config(format!(
                "{} is outside the folders that this sidecar may read: ask its operator for --allow-root",
                shard.display()
            )));
        }
    }
    Ok(())
}

/// The names in `classes.json` beside the first shard, if there is one: a list of strings.
pub(super) fn classes_beside(shards: &[PathBuf]) -> Option<Vec<String>> {
    const BYTES_MAX: u64 = 16 << 20;
    let path = shards.first()?.with_file_name("classes.json");
    let small = std::fs::metadata(&path).ok()?.len() <= BYTES_MAX;
    let bytes = if small { std::fs::read(path).ok()? } else { return None };
    serde_json::from_slice(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes)).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A dataset of one shard in a folder of its own.
    struct Bench {
        _folder: tempfile::TempDir,
        shard: PathBuf,
        datasets: Arc<Datasets>,
    }

    fn bench(contents: &[u8]) -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        let shard = folder.path().join("s.tar");
        fs::write(&shard, contents).expect("written");
        let datasets = Arc::new(Datasets::new(Some(folder.path().join("cache")), Links::Followed));
        Bench { _folder: folder, shard, datasets }
    }

    fn shard() -> Vec<u8> {
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        header.set_size(1);
        header.set_cksum();
        tar.append_data(&mut header, "0.cls", &b"7"[..]).expect("in memory");
        tar.into_inner().expect("in memory")
    }

    impl Bench {
        fn open(&self, rules: &DatasetRules) -> Opening {
            self.datasets.open(std::slice::from_ref(&self.shard), rules)
        }

        fn builds(&self) -> u64 {
            self.datasets.next_number.load(Relaxed)
        }
    }

    async fn end(mut opening: Opening) -> Result<Arc<Dataset>, (ErrorKind, String)> {
        loop {
            match opening.next().await {
                News::Progress(_) => {}
                News::Opened(dataset) => return Ok(dataset),
                News::Failed(kind, words) => return Err((kind, words)),
            }
        }
    }

    /// On one thread, so that nothing begins before the test waits for it.
    fn run<T>(test: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(test)
    }

    #[test]
    fn those_who_come_meanwhile_share_one_opening() {
        let bench = bench(&shard());
        run(async {
            let rules = DatasetRules::default();
            let openings: Vec<Opening> = (0..5).map(|_| bench.open(&rules)).collect();
            let other = bench.open(&DatasetRules { database: Some("x".into()), ..rules.clone() });
            let mut datasets = Vec::new();
            for opening in openings {
                datasets.push(end(opening).await.expect("sound"));
            }
            assert!(datasets.iter().all(|dataset| Arc::ptr_eq(dataset, &datasets[0])));
            assert!(!Arc::ptr_eq(&end(other).await.expect("sound"), &datasets[0]), "other rules, another dataset");
            assert_eq!(bench.builds(), 2);
            let later = end(bench.open(&rules)).await.expect("sound");
            assert!(Arc::ptr_eq(&later, &datasets[0]), "it is open already");
            assert!(bench.datasets.under_way.lock().expect("no panic").is_empty());
        });
    }

    #[test]
    fn an_error_reaches_all_and_is_not_kept() {
        let bench = bench(b"no tar");
        run(async {
            let rules = DatasetRules::default();
            let [one, two] = [bench.open(&rules), bench.open(&rules)];
            let (one, two) = (end(one).await.expect_err("no tar"), end(two).await.expect_err("no tar"));
            assert_eq!(one, two);
            assert!(one.0 == ErrorKind::Shard && one.1.contains("s.tar"), "{one:?}");
            fs::write(&bench.shard, shard()).expect("written");
            assert_eq!(end(bench.open(&rules)).await.expect("sound now").sample_count(), 1);
            assert_eq!(bench.builds(), 2);
        });
    }

    #[test]
    fn an_opening_stops_when_the_last_has_gone() {
        let bench = bench(&shard());
        run(async {
            let rules = DatasetRules::default();
            let (one, two) = (bench.open(&rules), bench.open(&rules));
            let stop = one._wanted.0.clone();
            drop(one);
            assert!(!stop.load(Relaxed), "another waits");
            drop(two);
            assert!(stop.load(Relaxed));
            // What was told to stop is not joined.
            let three = bench.open(&rules);
            assert!(!three._wanted.0.load(Relaxed));
            assert_eq!(end(three).await.expect("sound").sample_count(), 1);
            assert_eq!(bench.builds(), 2);
        });
    }
}
