//! Memory of what the chain's plugins make the proxy keep: their replies, and events on their way to them.

use super::ChainRun;
use crate::callout::WakeId;
use crate::failure::{Cause, Fault};
use crate::framing;
use crate::host::Host;
use crate::memory::{Kept, MemoryExceeded, Reservation, headers_cost};
use crate::plugin::{Audience, Reply};

impl ChainRun {
    /// Checks that a plugin's reply can be sent, and reserves its memory until the stream ends.
    pub(super) fn admit_reply<H: Host>(
        &mut self,
        index: usize,
        reply: &Reply,
        host: &H,
    ) -> Result<(), Fault> {
        let fault = |message| Fault {
            cause: Cause::Error,
            message,
        };
        if reply.audience == Audience::Nobody {
            return Ok(());
        }
        if !framing::is_final(reply.status) {
            let status = reply.status;
            return Err(fault(format!(
                "a reply's status must be a number from 200 to 599, and not {status}"
            )));
        }
        let limit = host.buffer_limit();
        if limit > 0 && reply.body.len() > limit {
            return Err(fault(format!(
                "the body of a reply must have at most {limit} bytes, and not {}; raise `body_limit` of the gateway",
                reply.body.len()
            )));
        }
        let Some(link) = self.chain.links().get(index) else {
            return Ok(());
        };
        let bytes = headers_cost(&reply.headers) + reply.body.len();
        self.memory
            .reserve(index, &link.memory, Kept::WithStream, 0, bytes)
            .map_err(|exceeded| fault(format!("the reply is not sent: {exceeded}")))
    }

    /// Reserves the memory of an event that waits for its plugin. `None` for an event that no plugin waits for.
    ///
    /// # Errors
    /// The account of the plugin is full.
    pub fn reserve_event(
        &self,
        id: WakeId,
        bytes: usize,
    ) -> Result<Option<Reservation>, MemoryExceeded> {
        let owner = self.waits.owner(id);
        let Some(link) = owner.and_then(|owner| self.chain.links().get(owner)) else {
            return Ok(None);
        };
        link.memory.reserve(bytes).map(Some)
    }
}
