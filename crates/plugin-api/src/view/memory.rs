//! Reservations for what a plugin's call makes the proxy keep.

use super::{MOST_STATE_BYTES, View};
use crate::callout::CalloutFailure;
use crate::host::Host;
use crate::log_budget::log_line;
use crate::memory::{ENTRY_COST, Kept, MemoryExceeded, Reservation, headers_cost};
use crate::phase::Direction;
use crate::stream::{BodyError, LogLevel};

impl<H: Host> View<'_, H> {
    /// Reserves bytes that the proxy keeps for the plugin.
    #[inline]
    pub(super) fn reserve(&mut self, kept: Kept, bytes: usize) -> Result<(), MemoryExceeded> {
        let account = &self.called.memory;
        let window = match kept {
            Kept::InBody(_) => self.host.buffer_limit(),
            Kept::WithStream => 0,
        };
        self.memory
            .reserve(self.link, account, kept, window, bytes)
            .inspect_err(|exceeded| self.log_exceeded(*exceeded))
    }

    /// Reserves the memory of a request that the plugin sends.
    ///
    /// # Errors
    /// [`CalloutFailure::BodyTooLarge`] or [`CalloutFailure::Memory`].
    pub(super) fn reserve_request(
        &self,
        headers: &[(&[u8], &[u8])],
        body: &[u8],
    ) -> Result<Reservation, CalloutFailure> {
        let limit = self.host.buffer_limit();
        if limit > 0 && body.len() > limit {
            return Err(CalloutFailure::BodyTooLarge(limit));
        }
        let bytes = ENTRY_COST + headers_cost(headers) + body.len();
        let reserved = self.called.memory.reserve(bytes);
        Ok(reserved.inspect_err(|exceeded| self.log_exceeded(*exceeded))?)
    }

    /// Logs a refusal by the plugin's memory account, of which Wasm guests receive only a status.
    #[cold]
    pub(super) fn log_exceeded(&self, exceeded: MemoryExceeded) {
        let account = &self.called.memory;
        if account.logs_refusal(self.host.unix_millis()) {
            let message = log_line(&exceeded.to_string()).into_owned();
            self.host.log(LogLevel::Warn, &self.called.name, &message);
        }
    }

    /// Charges the change of a body's length to the plugin, before it is made. What the call has put in and takes out
    /// again is free.
    pub(super) fn charge_body(
        &mut self,
        direction: Direction,
        old: usize,
        new: usize,
    ) -> Result<(), BodyError> {
        if new <= old {
            self.grown_credit += (old - new).min(self.grown);
            self.grown -= (old - new).min(self.grown);
            return Ok(());
        }
        let growth = new - old;
        let credit = growth.min(self.grown_credit);
        let kept = if self.local.is_some() && direction == Direction::Response {
            Kept::WithStream
        } else {
            Kept::InBody(direction)
        };
        self.reserve(kept, growth - credit)?;
        self.grown_credit -= credit;
        self.grown += growth;
        Ok(())
    }

    /// Counts what is written to metadata or filter state of the stream. `false`: it would be more than plugins may
    /// write on one stream.
    ///
    /// # Errors
    /// [`MemoryExceeded`]
    pub(super) fn count_state(&mut self, bytes: usize) -> Result<bool, MemoryExceeded> {
        let bytes = bytes + ENTRY_COST;
        let sum = self.changes.state_bytes.saturating_add(bytes);
        if sum > MOST_STATE_BYTES {
            return Ok(false);
        }
        self.reserve(Kept::WithStream, bytes)?;
        self.changes.state_bytes = sum;
        Ok(true)
    }
}
