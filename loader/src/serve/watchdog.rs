//! Tells the service manager what the service does, and that nothing in it is stuck.

use std::sync::Arc;
use std::time::Duration;

use super::Service;
use crate::pipeline::Pulse;

/// How often the manager's status line is renewed.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// Renews the status line for ever.
pub(super) async fn tell_status(service: Arc<Service>) {
    let mut ticks = ticks(STATUS_INTERVAL);
    let mut told = String::new();
    loop {
        ticks.tick().await;
        let words = service.words();
        if words != told && service.drain.reason().is_none() {
            service.notifier.status(&words);
            told = words;
        }
    }
}

/// Gives a sign of life twice in the manager's interval, as long as the data path goes on or has nothing to do. That this
/// task runs is the control plane's sign.
pub(super) async fn keep_alive(service: Arc<Service>, interval: Duration) {
    let mut ticks = ticks(interval);
    let mut last: Option<Pulse> = None;
    loop {
        ticks.tick().await;
        let pulse = service.pipeline.pulse();
        match last {
            Some(last) if !pulse.goes_on_since(&last) => tracing::error!(
                "{} stood still for {interval:.1?}: the service manager's watchdog will end this service unless that changes",
                pulse.stuck_words(&last)
            ),
            _ => service.notifier.alive(),
        }
        last = Some(pulse);
    }
}

fn ticks(interval: Duration) -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(interval.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}
