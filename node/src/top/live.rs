//! Refreshes the view of the cluster on the terminal until the user exits. Shows an error if the coordinator is lost.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use feedline_data::view::ClusterView;
use feedline_proto::CoordinatorService;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::MissedTickBehavior;

use super::render;
use super::screen::Screen;
use crate::failure::Failure;
use crate::signals;

/// The shortest interval between refreshes.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout for a request to the coordinator.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Refreshes the screen until the user presses q or a signal arrives.
pub(super) async fn run(
    coordinator: Arc<dyn CoordinatorService>,
    url: &str,
    interval: Duration,
) -> Result<(), Failure> {
    let stop = signals::watch()?;
    let mut resized = signal(SignalKind::window_change()).context("cannot install the SIGWINCH handler")?;
    let mut ticks = tokio::time::interval(interval.max(MIN_INTERVAL));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let screen = Screen::open()?;
    let mut keys = screen.keys();
    let mut content =
        ScreenContent { title: format!("feedline top  {url}"), view: ClusterView::default(), error: None };
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = keys.wait_for_quit() => return Ok(()),
            _ = resized.recv() => {}
            _ = ticks.tick() => tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = keys.wait_for_quit() => return Ok(()),
                answer = tokio::time::timeout(REQUEST_TIMEOUT, coordinator.cluster()) => match answer {
                    Ok(Ok(view)) => (content.view, content.error) = (view, None),
                    Ok(Err(error)) => content.error = Some(error.to_string()),
                    Err(_) => content.error = Some(format!("the coordinator at {url} is not responding")),
                }
            }
        }
        let size = screen.size();
        screen.draw(&render::clip_to_screen(&content.to_text(), size))?;
    }
}

/// The content of the screen.
struct ScreenContent {
    title: String,
    /// The last received view.
    view: ClusterView,
    /// The error of the last request.
    error: Option<String>,
}

impl ScreenContent {
    fn to_text(&self) -> String {
        let error = self.error.as_ref().map(|error| format!("{error}; retrying\n"));
        format!("{}\n{}\n{}", self.title, error.unwrap_or_default(), render::render(&self.view))
    }
}
