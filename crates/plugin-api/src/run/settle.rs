//! Framing at the point where headers leave a link: the length and the status that a plugin wrote are made
//! true, or the header that lies is dropped, before anything behind the link sees them.

use super::ChainRun;
use super::call::report;
use crate::failure::{Cause, Fault};
use crate::framing;
use crate::host::Host;
use crate::phase::{Direction, HeaderMap, Phase};
use crate::plugin::Reply;
use crate::view::{Window, replace_in_host, side};

impl ChainRun {
    /// The link at `position` is done with the headers of a direction: they go on to the next link.
    #[inline]
    pub(super) fn headers_left<H: Host>(
        &mut self,
        direction: Direction,
        position: usize,
        host: &mut H,
    ) {
        self.flow_mut(direction).cursor = position + 1;
        let [request, response] = self.changes.lengths;
        if self.changes.rerouted_by.is_some() && direction == Direction::Request {
            self.check_route(host);
        }
        if request || response || self.changes.status {
            self.settle_headers(direction, host);
        }
    }

    /// Makes the status and the length true that were changed.
    #[cold]
    pub(super) fn settle_headers<H: Host>(&mut self, direction: Direction, host: &mut H) {
        // A reply that plugins still look at is framed when it is sent.
        if direction == Direction::Response && self.local.is_some() {
            return;
        }
        if direction == Direction::Response && std::mem::take(&mut self.changes.status) {
            self.settle_status(host);
        }
        let Some(changed) = self.changes.lengths.get_mut(side(direction)) else {
            return;
        };
        if !std::mem::take(changed) {
            return;
        }
        if self.flow(direction).discards {
            self.settle_status(host);
            return;
        }
        let map = direction.headers();
        if host.header_count(map, b"content-length") == 0 {
            return;
        }
        let flow = self.flow(direction);
        // The chunk that is on its way when headers go on begins with the body's first byte.
        let ends = |end: bool| end || (flow.trailers.is_some() && !flow.data_waits);
        let whole = flow
            .chunk
            .filter(|chunk| chunk.window.start == 0 && ends(chunk.end));
        match whole {
            Some(chunk) => {
                let length = chunk.window.len().to_string();
                host.set_header(map, b"content-length", length.as_bytes());
            }
            None => {
                host.remove_header(map, b"content-length");
            }
        }
    }

    /// A plugin had the route chosen anew: a request that would go to another project, whose plugins have not
    /// seen it, ends here.
    #[cold]
    fn check_route<H: Host>(&mut self, host: &mut H) {
        let Some(index) = self.changes.rerouted_by.take() else {
            return;
        };
        let stays = host
            .route_chain()
            .is_none_or(|chain| chain.project() == self.chain.project());
        let Some(link) = self.chain.links().get(index).filter(|_| !stays) else {
            return;
        };
        let fault = Fault {
            cause: Cause::Error,
            message: format!(
                "the request would leave its project, whose plugins have seen it, for a route of another one: keep \
                 `:authority` and `:path` within the project, or set `plugins.{}.allow.leave_project: true` in \
                 outrider.yaml",
                link.name
            ),
        };
        report(link, Phase::RequestHeaders, &fault, host);
        let reply = Reply {
            status: 403,
            details: format!("outrider.{}.left_project", link.name),
            ..Reply::default()
        };
        self.reply(Direction::Request, index, reply);
    }

    /// A plugin changed the response's status: one without a body has none, and no length. Where it follows such a
    /// status and can have a body again, no chunk has left the chain yet, because chunks follow the headers.
    fn settle_status<H: Host>(&mut self, host: &mut H) {
        let map = HeaderMap::ResponseHeaders;
        let status = host.header(map, b":status", 0).and_then(framing::status);
        let Some(status) = status.filter(|status| framing::has_no_body(*status)) else {
            let was_without = std::mem::take(&mut self.response.discards);
            if was_without && !self.changes.lengths[1] {
                // The length that 205 had.
                host.remove_header(map, b"content-length");
            } else if self.response.headers_end {
                self.settle_length_of_nothing(host);
            }
            return;
        };
        self.changes.lengths[1] = false;
        let is_empty = self.response.headers_end;
        if status == 205 && !is_empty {
            // Without a length, an empty body would be sent in chunks.
            host.set_header(map, b"content-length", b"0");
        } else {
            host.remove_header(map, b"content-length");
        }
        self.response.discards = !is_empty;
    }

    /// A response that ends with its headers got a status that has a body. The length that it carries is of the body that
    /// it stands for (304), and a client would wait for it, or take the next response for it. Responses to HEAD carry one
    /// with any status.
    fn settle_length_of_nothing<H: Host>(&mut self, host: &mut H) {
        let map = HeaderMap::ResponseHeaders;
        let is_head = (host.header(HeaderMap::RequestHeaders, b":method", 0))
            .is_some_and(|method| method.eq_ignore_ascii_case(b"HEAD"));
        if !is_head && host.header_count(map, b"content-length") > 0 {
            self.changes.lengths[1] = false;
            host.set_header(map, b"content-length", b"0");
        }
    }

    /// A chunk has passed all links: of a response whose status has no body, nothing goes on.
    #[inline]
    pub(super) fn chunk_left<H: Host>(
        &mut self,
        direction: Direction,
        window: Window,
        host: &mut H,
    ) {
        if self.flow(direction).discards {
            self.discard(direction, window, host);
        }
    }

    #[cold]
    fn discard<H: Host>(&mut self, direction: Direction, window: Window, host: &mut H) {
        if replace_in_host(host, direction, window, b"").is_ok() {
            let links = self.states.len();
            (self.flow_mut(direction)).moved(links, window.end, window.start);
        }
    }
}
