//! The module's pages on Envoy's admin port.

use outrider_envoy_abi::{AdminAnswer, AdminPage, AdminPages};

use crate::Outrider;

const PAGES: &[AdminPage] = &[AdminPage {
    path: "/outrider",
    help: "Outrider: what its plugins do",
}];

impl AdminPages for Outrider {
    fn pages(&self) -> &'static [AdminPage] {
        PAGES
    }

    fn answer(&self, path: &str, _query: &str) -> AdminAnswer {
        AdminAnswer {
            status: 200,
            body: format!("{path}\n"),
        }
    }
}
