//! One job at one rank: everything that feeder and workers need to know of it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use super::places::{Places, StreamPlace};
use super::under_way::UnderWay;
use super::{FaultLedger, Holdings};
use crate::batch::{BatchLayout, FieldRecipe, room};
use crate::error::{Error, FaultReport, Result};
use crate::plan::{Partition, Plan, PlanOptions, SampleId, Source};
use crate::ring::layout::Control;
use crate::ring::named::Label;
use crate::ring::{BatchTicket, RingDescriptors, RingWriter, SealedSpill};
use crate::shard::{Dataset, FieldSelector};
use crate::spec::{JobSpec, OnError, OrderSpec, RingKind};
use crate::sys::budget::Reservation;
use crate::sys::memory::Mebibytes;
use crate::sys::topology::{self, PciId, Placement};
use crate::telemetry::{StageState, StreamCounters, StreamFigures};

/// Number of a stream in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// What a stream tells its connection.
#[derive(Debug)]
pub enum StreamEvent {
    /// A sample could not be used; `first` of its class.
    Fault {
        /// Which and why.
        report: FaultReport,
        /// The first of its class in this stream: worth a line in the log.
        first: bool,
    },
    /// A batch that is about to be published has values that its slot has no room for; the client needs this memory to
    /// read it.
    Spilled {
        /// The batch.
        ticket: BatchTicket,
        /// The memory.
        spill: SealedSpill,
    },
    /// The sidecar shuts down: batches before `end` are finished, and it and later ones never come.
    Drains {
        /// The first batch that does not come.
        end: BatchTicket,
    },
    /// The stream ended.
    Failed(Error),
}

/// Where events go. Called from workers and the feeder, so it must not block.
pub type StreamEvents = Box<dyn Fn(StreamEvent) + Send + Sync>;

/// What a stream is made of.
pub struct StreamOptions {
    /// The checked job.
    pub spec: JobSpec,
    /// Its dataset.
    pub dataset: Arc<Dataset>,
    /// Which samples an epoch takes.
    pub source: Source,
    /// Samples in quarantine.
    pub left_out: Vec<u64>,
    /// Where events go.
    pub events: StreamEvents,
}

/// An open stream.
pub struct Stream {
    id: StreamId,
    spec: JobSpec,
    dataset: Arc<Dataset>,
    selector: FieldSelector,
    plan: Plan,
    fields: Vec<FieldRecipe>,
    field_order: Vec<usize>,
    layout: BatchLayout,
    ring: Arc<RingWriter>,
    counters: StreamCounters,
    faults: FaultLedger,
    places: Places,
    generation: AtomicU32,
    stopped: AtomicBool,
    failed: AtomicBool,
    repeats: bool,
    under_way: UnderWay,
    placement: Option<Placement>,
    notices: Vec<String>,
    events: StreamEvents,
    // Given back after what it stands for: fields drop in this order.
    _ring_memory: Reservation,
    index_memory: Arc<Reservation>,
    // Goes last, when all else of it is gone.
    gone: Arc<()>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Stream").field("id", &self.id).field("name", &self.spec.name).finish_non_exhaustive()
    }
}

impl Stream {
    /// Compiles the job and reserves its ring within `holdings`; the descriptors are for the client.
    pub(super) fn new(options: StreamOptions, holdings: &Holdings) -> Result<(Arc<Self>, RingDescriptors)> {
        let StreamOptions { spec, dataset, source, left_out, events } = options;
        spec.check()?;
        let partition = Partition::new(spec.rank, spec.world_size, spec.batch_size, spec.tail)?;
        let repeats = source.repeats();
        let order = order_of(&spec, &dataset);
        let plan = Plan::new(PlanOptions {
            source,
            order,
            seed: spec.seed,
            partition,
            first_samples: dataset.first_samples(),
            left_out: &left_out,
        })?;
        check_compressed(&dataset, plan.block_shards())?;
        let sources: Vec<_> = spec.fields.iter().map(|field| field.sources.clone()).collect();
        let selector = dataset.selector(&sources)?;
        let (fields, layouts) = FieldRecipe::compile_all(&spec.fields, spec.batch_size)?;
        let mut field_order: Vec<usize> = (0..fields.len()).collect();
        field_order.sort_by_key(|&field| fields[field].turn());
        let values_bytes = values_bytes(&fields, &dataset, &selector, spec.batch_size);
        let layout = BatchLayout::with_values(layouts, spec.batch_size, dataset.key_bytes_max(), values_bytes)?;
        let index_memory = holdings.index(&dataset)?;
        let ring_memory = reserve_ring(&spec, &layout, holdings)?;
        let placement = placement(&spec, holdings.allowed_cores())?;
        let make = || match spec.ring {
            RingKind::Memfd => RingWriter::create(&layout, spec.slots),
            RingKind::Named => {
                let label = Label { job: &spec.name, rank: spec.rank, batches_per_epoch: plan.batch_count(0) };
                RingWriter::create_named(&layout, spec.slots, &label)
            }
        };
        let (made, notices) = make_ring(make, placement.as_ref());
        let (ring, descriptors) = made?;
        let epoch_rows = plan.batch_count(0).saturating_mul(u64::from(spec.batch_size));
        let stream = Self {
            id: next_id(),
            faults: FaultLedger::new(spec.error_budget, epoch_rows),
            places: Places::new(spec.slots),
            spec,
            dataset,
            selector,
            plan,
            fields,
            field_order,
            layout,
            ring: Arc::new(ring),
            counters: StreamCounters::default(),
            generation: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            repeats,
            under_way: UnderWay::default(),
            placement,
            notices,
            events,
            _ring_memory: ring_memory,
            index_memory,
            gone: Arc::default(),
        };
        Ok((Arc::new(stream), descriptors))
    }

    /// Dead once everything of the stream is gone, its memory too; the stream itself is out of reach a while before.
    pub(super) fn gone(&self) -> Weak<()> {
        Arc::downgrade(&self.gone)
    }

    /// Its number.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The job.
    pub fn spec(&self) -> &JobSpec {
        &self.spec
    }

    /// Where the samples are.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// Which members of a sample are its fields.
    pub fn selector(&self) -> &FieldSelector {
        &self.selector
    }

    /// Which sample is where.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What becomes of each field's bytes.
    pub fn fields(&self) -> &[FieldRecipe] {
        &self.fields
    }

    /// The fields in the order in which a row makes them: those that follow another come after it.
    pub(super) fn field_order(&self) -> &[usize] {
        &self.field_order
    }

    /// Where each field lies in a slot.
    pub fn layout(&self) -> &BatchLayout {
        &self.layout
    }

    /// Its slots.
    pub fn ring(&self) -> &Arc<RingWriter> {
        &self.ring
    }

    /// Its counters.
    pub fn counters(&self) -> &StreamCounters {
        &self.counters
    }

    /// Its bad samples.
    pub fn faults(&self) -> &FaultLedger {
        &self.faults
    }

    /// Where it is opened up to, written by the feeder.
    pub(super) fn places(&self) -> &Places {
        &self.places
    }

    /// Where its trainer stands: the first batch that it has not taken.
    pub fn place(&self) -> StreamPlace {
        let slots = self.ring.slots_by_state();
        self.places.behind(slots.filling + slots.ready)
    }

    /// Bytes of its ring's slots.
    pub fn ring_bytes(&self) -> u64 {
        self.layout.slot_bytes * u64::from(self.ring.slot_count())
    }

    /// Its figures, with those of the stages that it shares.
    pub fn figures(&self, stages: &StageState) -> StreamFigures {
        StreamFigures { stages: stages.figures(), ..self.counters.figures() }
    }

    /// Where its GPU wants it, as far as that is known.
    pub(super) fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    /// What users should know of it.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The memory of its dataset's index.
    pub(super) fn index_memory(&self) -> &Arc<Reservation> {
        &self.index_memory
    }

    /// Its rows between feeder and worker.
    pub(super) fn under_way(&self) -> &UnderWay {
        &self.under_way
    }

    /// The generation whose batches are wanted.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::Acquire)
    }

    /// From now on only batches of `generation` are wanted.
    pub(super) fn set_generation(&self, generation: u32) {
        self.generation.store(generation, Ordering::Release);
    }

    /// No more batches are wanted.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.ring.end();
    }

    /// Whether it was stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Whether bad samples are replaced, or end in an error at the client.
    pub(super) fn replaces(&self) -> bool {
        self.spec.on_error == OnError::Replace
    }

    /// The number that keys a row's augmentation. Samples that are drawn with replacement or mixed come several times an
    /// epoch and shall differ each time, so there the position keys it, told apart from samples by the top bit.
    pub(super) fn draw_number(&self, sample: u64, position: u64) -> u64 {
        if self.repeats { position | 1 << 63 } else { sample }
    }

    /// Tells the connection.
    pub(super) fn tell(&self, event: StreamEvent) {
        (self.events)(event);
    }

    /// Ends the stream with `error`; later errors of the same end are left out.
    pub(super) fn fail(&self, error: Error) {
        self.stop();
        if !self.failed.swap(true, Ordering::AcqRel) {
            self.tell(StreamEvent::Failed(error));
        }
    }
}

/// Where the job's GPU is.
fn placement(spec: &JobSpec, allowed_cores: &[u32]) -> Result<Option<Placement>> {
    let Some(text) = &spec.device_pci else { return Ok(None) };
    let device = PciId::parse(text)
        .ok_or_else(|| Error::config(format!("device_pci {text:?} is no PCI id, such as 0000:3b:00.0")))?;
    Ok(Some(Placement::near(Path::new("/"), &device, allowed_cores)))
}

/// Makes a ring, on the memory node of its GPU where that is known; and tells where it is not.
fn make_ring(
    make: impl Fn() -> Result<(RingWriter, RingDescriptors)> + Send,
    placement: Option<&Placement>,
) -> (Result<(RingWriter, RingDescriptors)>, Vec<String>) {
    let (made, why) = match placement {
        None | Some(Placement::OneNode) => (make(), None),
        Some(Placement::Unknown(why)) => (make(), Some(why.clone())),
        Some(Placement::Node { node, .. }) => {
            let (made, refused) = topology::with_memory_of(*node, make);
            (made, refused.map(|error| format!("asking for memory of node {node} fails: {error}")))
        }
    };
    let tell = |why: String| format!("the ring may be on another memory node than its GPU: {why}");
    (made, why.map(tell).into_iter().collect())
}

/// Takes the memory of a ring from the budget.
fn reserve_ring(spec: &JobSpec, layout: &BatchLayout, holdings: &Holdings) -> Result<Reservation> {
    let slot_bytes = layout.slot_bytes;
    let bytes = slot_bytes.saturating_mul(u64::from(spec.slots)).saturating_add(Control::bytes(spec.slots));
    holdings.ring(bytes, format!("job {:?} at rank {}", spec.name, spec.rank)).map_err(|shortage| Error::Resources {
        message: format!(
            "the ring needs {} slots x {} = {}, but {shortage}: lower the number of slots or the batch size, end another \
             job, or raise --memory (memory= of the Loader that starts a private sidecar)",
            spec.slots,
            Mebibytes(slot_bytes),
            Mebibytes(bytes)
        ),
    })
}

/// Shards of a block where they are compressed and nobody says how many.
const COMPRESSED_BLOCK_SHARDS: u32 = 2;

/// Most shards of a block where they are compressed: with those of the next block, all are unpacked at once.
const COMPRESSED_BLOCK_SHARDS_MAX: u32 = 4;

/// The order of the job; blocks of compressed shards are small where nobody says how large.
fn order_of(spec: &JobSpec, dataset: &Dataset) -> OrderSpec {
    match spec.order {
        OrderSpec::Block { block_shards: None } if dataset.first_compressed().is_some() => {
            OrderSpec::Block { block_shards: Some(COMPRESSED_BLOCK_SHARDS) }
        }
        order => order,
    }
}

/// Refuses orders that would have every shard of a compressed dataset unpacked at once.
fn check_compressed(dataset: &Dataset, block_shards: Option<u32>) -> Result<()> {
    let Some(first) = dataset.first_compressed() else { return Ok(()) };
    let refuse = |words: &str| {
        Err(Error::config(format!(
            "{} is compressed, so its samples cannot be read in any order: {words}, or write plain tars, for example by \
             `feedline convert`",
            first.display()
        )))
    };
    match block_shards {
        None => refuse(
            "use order=\"block\", which shuffles shards and the samples of a few of them, or order=\"sequential\"",
        ),
        Some(count) if count > COMPRESSED_BLOCK_SHARDS_MAX => {
            refuse(&format!("block_shards may be at most {COMPRESSED_BLOCK_SHARDS_MAX} here"))
        }
        Some(_) => Ok(()),
    }
}

/// Room for values of varying length, by the lengths of some samples.
fn values_bytes(fields: &[FieldRecipe], dataset: &Dataset, selector: &FieldSelector, batch_size: u32) -> u32 {
    let mut ranges = vec![None; fields.len()];
    let lengths: Vec<Vec<Option<u32>>> = room::spread(dataset.sample_count())
        .map(|sample| {
            selector.select(dataset, SampleId(sample), &mut ranges);
            ranges.iter().map(|range| range.map(|place| place.range.len)).collect()
        })
        .collect();
    let rooms = fields.iter().enumerate();
    room::total(rooms.map(|(field, recipe)| recipe.room(batch_size, lengths.iter().map(|sample| sample[field]))))
}

fn next_id() -> StreamId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    StreamId(NEXT.fetch_add(1, Ordering::Relaxed))
}
