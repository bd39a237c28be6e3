//! Addresses for servers that are about to start.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
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

/// Returns addresses on which nothing listens now, each another one. They are not of 127.0.0.1 but of a loopback address of this
/// process's own: other processes, and outgoing connections, take ports of that one, and Envoy needs a while until it takes these.
///
/// # Errors
/// The loopback address has too few free ports.
pub(crate) fn own_addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let loopback = Ipv4Addr::new(127, 64 | high, middle, low);
    // All are held until all are there: the system hands out a port again once it is free.
    let sockets: Result<Vec<_>, _> = (0..count)
        .map(|_| TcpListener::bind((loopback, 0)))
        .collect();
    let addresses: Result<Vec<_>, _> = sockets?.iter().map(TcpListener::local_addr).collect();
    Ok(addresses?)
}

/// One of [`own_addresses`], which was not given before.
///
/// # Errors
/// The loopback address has no free port.
pub(crate) fn own_address() -> anyhow::Result<SocketAddr> {
    for _ in 0..ATTEMPTS {
        for address in own_addresses(1)? {
            let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
            if given.insert(address.port()) {
                return Ok(address);
            }
        }
    }
    anyhow::bail!("this process's loopback address has no port left that was not used before")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_given_twice() {
        let addresses: BTreeSet<_> = (0..500).map(|_| free_address().unwrap()).collect();
        assert_eq!(addresses.len(), 500);
        let own: BTreeSet<_> = (0..50).map(|_| own_address().unwrap()).collect();
        assert_eq!(own.len(), 50);
        assert_eq!(own_addresses(50).unwrap().len(), 50);
        assert!(own.iter().all(|address| address.ip().is_loopback()));
        assert!(addresses.is_disjoint(&own));
    }
}
