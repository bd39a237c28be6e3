//! Addresses for servers that are about to start.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Ports that this process has been given.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Attempts to get a port that was not given before.
const ATTEMPTS: usize = 1000;

/// Returns an address of 127.0.0.1 on which nothing listens now, and which this process has not been given before: the
/// system may give a port again as soon as it is free. Another process may take it meanwhile.
///
/// # Errors
/// Loopback has no free port.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    for _ in 0..ATTEMPTS {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        if given.insert(address.port()) {
            return Ok(address);
        }
    }
    anyhow::bail!("no port of 127.0.0.1 is left that was not used before")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_given_twice() {
        let addresses: BTreeSet<_> = (0..500).map(|_| free_address().unwrap()).collect();
        assert_eq!(addresses.len(), 500);
    }
}
