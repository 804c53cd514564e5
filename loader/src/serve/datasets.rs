//! Datasets that are open: one index a node, however many clients use it.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::error::{Error, Result};
use crate::shard::{Dataset, IndexOptions, IndexProgress, Links};
use crate::spec::DatasetRules;

/// Open datasets by their lists of shards and the rules they are understood by. They live as long as a stream uses them.
#[derive(Debug)]
pub(super) struct Datasets {
    cache_dir: Option<PathBuf>,
    links: Links,
    open: Mutex<Vec<Open>>,
}

#[derive(Debug)]
struct Open {
    shards: Vec<PathBuf>,
    rules: DatasetRules,
    dataset: Weak<Dataset>,
}

impl Datasets {
    pub(super) fn new(cache_dir: Option<PathBuf>, links: Links) -> Self {
        Self { cache_dir, links, open: Mutex::default() }
    }

    /// The dataset of `shards`: opened anew when it is not open, or when a shard has changed since. Ends soon, with an
    /// error, once `stop` is set.
    pub(super) fn open(
        &self,
        shards: &[PathBuf],
        rules: &DatasetRules,
        progress: &(dyn Fn(IndexProgress) + Sync),
        stop: &AtomicBool,
    ) -> Result<Arc<Dataset>> {
        if let Some(dataset) = self.find(shards, rules).filter(|dataset| dataset.is_current()) {
            return Ok(dataset);
        }
        let options =
            IndexOptions { cache_dir: self.cache_dir.clone(), threads: None, rules: rules.clone(), links: self.links };
        let dataset = Arc::new(Dataset::open_until(shards, &options, progress, stop)?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|other| other.dataset.strong_count() > 0 && !other.is_of(shards, rules));
        open.push(Open { shards: shards.to_vec(), rules: rules.clone(), dataset: Arc::downgrade(&dataset) });
        Ok(dataset)
    }

    fn find(&self, shards: &[PathBuf], rules: &DatasetRules) -> Option<Arc<Dataset>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().find(|other| other.is_of(shards, rules)).and_then(|other| other.dataset.upgrade())
    }
}

impl Open {
    fn is_of(&self, shards: &[PathBuf], rules: &DatasetRules) -> bool {
        self.shards == shards && self.rules == *rules
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
    small.then(|| serde_json::from_slice(&std::fs::read(path).ok()?).ok()).flatten()
}
