//! The picture that is drawn anew, until the user has seen enough. A coordinator that goes away is told in it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use feedline_data::view::ClusterView;
use feedline_proto::CoordinatorService;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::picture;
use super::screen::Screen;
use crate::failure::Failure;
use crate::signals;

/// Pictures follow each other no faster than this.
const SHORTEST: Duration = Duration::from_millis(100);
/// A coordinator that has not answered for so long is told to be away.
const PATIENCE: Duration = Duration::from_secs(3);

/// Draws until q or a signal.
pub(super) async fn run(
    coordinator: Arc<dyn CoordinatorService>,
    url: &str,
    interval: Duration,
) -> Result<(), Failure> {
    let stop = signals::watch()?;
    let mut resized = signal(SignalKind::window_change()).context("cannot watch for SIGWINCH")?;
    let mut ticks = tokio::time::interval(interval.max(SHORTEST));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let screen = Screen::open()?;
    let mut keys = screen.keys();
    let mut shown =
        Shown { title: format!("feedline top  {url}"), view: ClusterView::default(), trouble: None };
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = keys.quit() => return Ok(()),
            _ = resized.recv() => {}
            _ = ticks.tick() => tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = keys.quit() => return Ok(()),
                answer = tokio::time::timeout(PATIENCE, coordinator.cluster()) => match answer {
                    Ok(Ok(view)) => (shown.view, shown.trouble) = (view, None),
                    Ok(Err(refusal)) => shown.trouble = Some(refusal.to_string()),
                    Err(_) => shown.trouble = Some(format!("the coordinator at {url} does not answer")),
                }
            }
        }
        let size = screen.size();
        screen.draw(&picture::fit(&shown.text(), size))?;
    }
}

/// What is on the screen.
struct Shown {
    title: String,
    /// The last answer.
    view: ClusterView,
    /// Why there is no newer one.
    trouble: Option<String>,
}

impl Shown {
    fn text(&self) -> String {
        let trouble = self.trouble.as_ref().map(|sentence| format!("{sentence}; trying again\n"));
        format!("{}\n{}\n{}", self.title, trouble.unwrap_or_default(), picture::render(&self.view))
    }
}
