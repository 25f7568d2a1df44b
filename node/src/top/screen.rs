//! The terminal in full-screen mode: alternate screen, hidden cursor, unbuffered keys. The previous state is always
//! restored.

use std::io::{self, Write};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use rustix::io::Errno;
use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Switches to the alternate screen and hides the cursor.
const ENTER_FULL_SCREEN: &str = "\x1b[?1049h\x1b[?25l";
/// Shows the cursor and switches to the normal screen.
const LEAVE_FULL_SCREEN: &str = "\x1b[?25h\x1b[?1049l";
/// Interval between polls of the keyboard.
const KEY_INTERVAL: Duration = Duration::from_millis(100);
/// Columns and lines of a terminal that does not report its size.
const DEFAULT_SIZE: (usize, usize) = (80, 24);

/// The terminal in full-screen mode. Dropping this value, or a panic, restores the terminal.
pub(super) struct Screen(Arc<Terminal>);

struct Terminal {
    /// Previous settings of the keyboard; `None` if standard input is not a terminal.
    previous: Option<Termios>,
    is_full_screen: AtomicBool,
}

impl Screen {
    /// Switches the terminal to full-screen mode.
    pub(super) fn open() -> anyhow::Result<Self> {
        let previous = termios::tcgetattr(io::stdin()).ok();
        let terminal = Arc::new(Terminal { previous, is_full_screen: AtomicBool::new(true) });
        // From here on, every exit restores the terminal.
        let screen = Self(Arc::clone(&terminal));
        let previous_hook = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            terminal.restore();
            previous_hook(panic);
        }));
        if let Some(previous) = &screen.0.previous {
            let mut keys = previous.clone();
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            // A read returns the typed keys without waiting.
            keys.special_codes[SpecialCodeIndex::VMIN] = 0;
            keys.special_codes[SpecialCodeIndex::VTIME] = 0;
            termios::tcsetattr(io::stdin(), OptionalActions::Now, &keys)
                .context("cannot enable unbuffered keyboard input on the terminal")?;
        }
        write(ENTER_FULL_SCREEN)?;
        Ok(screen)
    }

    /// Returns the typed keys. Must be called inside a tokio runtime.
    pub(super) fn keys(&self) -> Keys {
        let mut polls = interval(KEY_INTERVAL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Keys { polls, is_enabled: self.0.previous.is_some() }
    }

    /// Returns the number of columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = termios::tcgetwinsize(io::stdout()).ok();
        let known = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        known.map_or(DEFAULT_SIZE, |size| (size.ws_col.into(), size.ws_row.into()))
    }

    /// Replaces the content of the screen.
    pub(super) fn draw(&self, lines: &[String]) -> anyhow::Result<()> {
        // Each line clears the rest of its row, and the last line clears everything below it.
        write(&format!("\x1b[H{}\x1b[J", lines.join("\x1b[K\r\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.0.restore();
    }
}

impl Terminal {
    fn restore(&self) {
        if !self.is_full_screen.swap(false, Ordering::SeqCst) {
            return;
        }
        // Ignore an error, which means that the terminal has been closed.
        let _ = write(LEAVE_FULL_SCREEN);
        if let Some(previous) = &self.previous {
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, previous);
        }
    }
}

fn write(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("cannot write to the terminal")
}

/// The keys that the user types.
pub(super) struct Keys {
    polls: Interval,
    /// Whether standard input is a terminal in full-screen mode, so that a read never blocks.
    is_enabled: bool,
}

impl Keys {
    /// Waits until the user presses q. The future can be dropped and created again.
    pub(super) async fn wait_for_quit(&mut self) {
        while self.is_enabled {
            self.polls.tick().await;
            let mut typed = [0; 64];
            match rustix::io::read(io::stdin(), &mut typed) {
                Ok(count) if typed[..count].iter().any(|key| matches!(key, b'q' | b'Q')) => return,
                Ok(_) | Err(Errno::INTR | Errno::AGAIN) => {}
                // Without a keyboard, a signal can still end the command.
                Err(_) => self.is_enabled = false,
            }
        }
        std::future::pending().await
    }
}
