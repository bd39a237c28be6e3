//! What `make demo-lanes` shows: one version of a whole chain of services, chosen by a header that no service knows.

use std::io::Write;
use std::path::Path;

use anyhow::ensure;

use crate::chain::{Chain, ChainOptions, LANES, Mode};

/// Services of the chain.
const LENGTH: usize = 3;
/// Requests of the check of article 000: each gives `LENGTH` greetings.
const REQUESTS: usize = 5;

/// Runs the demonstration and tells it to `out`.
///
/// # Errors
/// What was expected, and what came.
pub async fn run(outrider: &Path, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    writeln!(
        out,
        "Outrider: lanes. A request gets its version at the edge and keeps it along the whole chain.\n\n  \
         client -> edge -> hello1 -> hello2 -> hello3     each in two versions: en (the baseline) and fr,\n  \
                                                          each version with an Envoy of its own\n"
    )?;
    let mut chain = Chain::start(ChainOptions::line(outrider.to_owned(), LENGTH)).await?;
    writeln!(
        out,
        "Permissive mode, at http://{}. The services pass on `x-request-id`, and nothing else:\n",
        chain.edge()
    )?;
    let told = permissive(&mut chain, out).await;
    chain.stop().await?;
    told?;

    let options = ChainOptions {
        mode: Mode::Strict,
        passes: Vec::new(),
        ..ChainOptions::line(outrider.to_owned(), LENGTH)
    };
    let chain = Chain::start(options).await?;
    writeln!(
        out,
        "\nStrict mode, at http://{}. The services pass on nothing; each sidecar stamps its own lane:\n",
        chain.edge()
    )?;
    let told = both_lanes(&chain, out).await;
    chain.stop().await?;
    told?;
    writeln!(
        out,
        "\nAll Envoys drained and stopped. How it works, and what services have to do: docs/lanes.md."
    )?;
    Ok(())
}

async fn permissive(chain: &mut Chain, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    both_lanes(chain, out).await?;
    let (_, french) = lane("fr");
    let mut greetings = 0;
    for _ in 0..REQUESTS {
        let text = chain.get("/hello/eric", &[("user", "fr")]).await?;
        greetings += text.matches(french).count();
    }
    ensure!(
        greetings == REQUESTS * LENGTH,
        "{greetings} times `{french}`, not {}",
        REQUESTS * LENGTH
    );
    writeln!(
        out,
        "  {REQUESTS} requests with user: fr     {greetings} times `{french}`"
    )?;

    let forged = chain
        .get("/hello/eric", &[("x-outrider-lane", "fr")])
        .await?;
    ensure!(
        forged == answer(["en"; LENGTH]),
        "a client chose its lane: {forged}"
    );
    writeln!(
        out,
        "  x-outrider-lane: fr           {forged}   (removed at the edge: clients do not choose)"
    )?;

    let mixed = answer(["fr", "en", "fr"]);
    let request: (&str, &[(&str, &str)]) = ("/hello/eric", &[("user", "fr")]);
    chain
        .remove_version(("hello2", "fr"), request, &mixed)
        .await?;
    writeln!(
        out,
        "\nhello2's version fr is taken out, while it runs. The baseline serves, and the lane goes on:\n"
    )?;
    show(chain, "fr", &mixed, out).await
}

async fn both_lanes(chain: &Chain, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    for (name, _) in LANES {
        show(chain, name, &answer([name; LENGTH]), out).await?;
    }
    Ok(())
}

async fn show(
    chain: &Chain,
    user: &str,
    expected: &str,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    let text = chain.get("/hello/eric", &[("user", user)]).await?;
    ensure!(
        text == expected,
        "user: {user} should get {expected}, and got {text}"
    );
    writeln!(out, "  user: {user}                      {text}")?;
    Ok(())
}

/// The answer of a chain whose services are of these lanes.
fn answer(lanes: [&str; LENGTH]) -> String {
    let parts = lanes.iter().enumerate().map(|(index, name)| {
        let (_, greeting) = lane(name);
        format!("{greeting} eric@hello{}:", index + 1)
    });
    parts.collect::<Vec<_>>().join("<")
}

fn lane(name: &str) -> (&'static str, &'static str) {
    let mut lanes = LANES.iter().copied();
    lanes.find(|(one, _)| *one == name).unwrap_or(("", ""))
}
