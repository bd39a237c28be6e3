//! Lanes: one version of a whole call chain, chosen at the edge and carried to the chain's end.
//!
//! Services pass on the id of a trace, as tracing libraries do, and not the header that names a lane. A sidecar therefore
//! remembers the lane of each request that it lets in, by the trace ([`TraceTable`]), and finds it again for the requests
//! that the service sends out ([`Carrier`] reads the trace's id).
//!
//! Not here: Envoy, and anything unsafe.

mod baggage;
mod carried;
mod forms;
mod hop;
mod names;
mod rules;
mod table;
mod trace;

pub use carried::{MOST_CARRIED, MOST_CARRIED_HEADERS};
pub use forms::RulesError;
pub use hop::{Group, Handled, Holds, LaneMemory, MOST_IDS, Outcome, Proxy, RequestHeaders, Role};
pub use names::{LONGEST_NAME, LaneId, LaneNames, MOST_NAMES, NameError};
pub use rules::{Condition, Part, Request, Rule, Rules, Test, WHOLE};
pub use table::{Found, GroupKey, Held, Hold, Seconds, TraceKey, TraceTable};
pub use trace::{Carrier, PROBE, TraceId};
