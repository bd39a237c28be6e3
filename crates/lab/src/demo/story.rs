//! The steps of the demonstration: what is asked, what is shown of the answer, and what must be true
//! of it.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::gateway::Gateway;
use super::workspace::Workspace;
use crate::Protocol;
use crate::client::{Connection, Request, Response, Target};
use crate::echo::Echo;
use crate::steady::SteadyPlan;

/// What the demonstration changes in the file: a good change, then a broken one.
pub(super) const EDITS: [(&str, &str); 2] = [
    ("x-season: winter", "x-season: summer"),
    ("prefix: /cart", "prefx: /cart"),
];

/// A change has to be in force by then; typically it takes a tenth of it.
const IN_FORCE: Duration = Duration::from_secs(5);

/// What the connections of the background send without pause would starve a small machine.
const PAUSE: Duration = Duration::from_millis(5);

const CONNECTIONS: usize = 8;

/// Base64 of `alice:secret`.
const ALICE: &str = "Basic YWxpY2U6c2VjcmV0";

/// What is asked.
#[derive(Debug, Clone, Copy)]
struct Ask {
    path: &'static str,
    body: Option<&'static str>,
    headers: &'static [(&'static str, &'static str)],
}

impl Ask {
    const fn get(path: &'static str, headers: &'static [(&'static str, &'static str)]) -> Self {
        Self {
            path,
            body: None,
            headers,
        }
    }

    fn request(self) -> Request {
        let request = match self.body {
            None => Request::get(self.path),
            Some(body) => Request::post(self.path, body),
        };
        let request = if self.headers.iter().any(|(name, _)| *name == "user-agent") {
            request
        } else {
            request.header("user-agent", "outrider-demo")
        };
        self.headers.iter().fold(request, |request, (name, value)| {
            request.header(name, value)
        })
    }
}

/// An answer, and what can be demanded of it.
struct Answer {
    response: Response,
    elapsed: Duration,
}

impl Answer {
    fn status(&self, expected: u16) -> anyhow::Result<&Self> {
        let status = self.response.status;
        anyhow::ensure!(
            status == expected,
            "expected status {expected}, got {status}: {}",
            self.response.text()
        );
        Ok(self)
    }

    fn header(&self, name: &str, expected: &str) -> anyhow::Result<&Self> {
        let value = self.response.headers.get(name);
        anyhow::ensure!(
            value == Some(expected),
            "expected the response header {name}: {expected}, got {value:?}"
        );
        Ok(self)
    }

    fn body(&self, expected: &str) -> anyhow::Result<&Self> {
        let text = self.response.text();
        anyhow::ensure!(
            text == expected,
            "expected the body {expected:?}, got {text:?}"
        );
        Ok(self)
    }

    /// The first value of a header of the request as the upstream got it.
    fn upstream(&self, name: &str) -> Option<String> {
        let description = self.response.json();
        let value = description.get("headers")?.get(name)?.get(0)?;
        value.as_str().map(str::to_owned)
    }

    fn upstream_got(&self, name: &str, expected: Option<&str>) -> anyhow::Result<&Self> {
        let value = self.upstream(name);
        anyhow::ensure!(
            value.as_deref() == expected,
            "expected the upstream to get {name}: {expected:?}, but it got {value:?}"
        );
        Ok(self)
    }
}

/// The demonstration under way, on one connection that stays open from its first step to its last.
pub(super) struct Story<'out> {
    out: &'out mut (dyn Write + Send),
    target: Target,
    connection: Connection,
    steps: usize,
}

impl<'out> Story<'out> {
    /// Opens the connection.
    pub(super) async fn begin(
        target: Target,
        out: &'out mut (dyn Write + Send),
    ) -> anyhow::Result<Self> {
        let connection = Connection::open(&target).await?;
        Ok(Self {
            out,
            target,
            connection,
            steps: 0,
        })
    }

    fn step(&mut self, title: &str) -> anyhow::Result<()> {
        self.steps += 1;
        writeln!(self.out, "\n{}. {title}", self.steps)?;
        Ok(())
    }

    /// Asks, and prints what was asked and what came: status, the headers named, and the body when
    /// it is not the upstream's description.
    async fn ask(&mut self, ask: Ask, headers: &[&str]) -> anyhow::Result<Answer> {
        let method = if ask.body.is_some() { "POST" } else { "GET" };
        write!(self.out, "   > {method} {}", ask.path)?;
        for (name, value) in ask.headers {
            let clear = if *value == ALICE {
                " (alice:secret)"
            } else {
                ""
            };
            write!(self.out, "  {name}: {value}{clear}")?;
        }
        if let Some(body) = ask.body {
            write!(self.out, "  body: {body:?}")?;
        }
        writeln!(self.out)?;
        let answer = self.exchange(ask).await?;
        write!(self.out, "   < {}", answer.response.status)?;
        for name in headers {
            if let Some(value) = answer.response.headers.get(name) {
                write!(self.out, "  {name}: {value}")?;
            }
        }
        let text = answer.response.text();
        if !text.is_empty() && !text.starts_with('{') {
            let excerpt: String = text.chars().take(80).collect();
            write!(self.out, "  body: {excerpt:?}")?;
        }
        writeln!(self.out)?;
        Ok(answer)
    }

    /// Asks in silence.
    async fn exchange(&mut self, ask: Ask) -> anyhow::Result<Answer> {
        let began = Instant::now();
        let response = self
            .connection
            .send(ask.request())
            .await
            .with_context(|| format!("expected an answer to {}", ask.path))?;
        Ok(Answer {
            response,
            elapsed: began.elapsed(),
        })
    }

    fn show_upstream(&mut self, answer: &Answer, names: &[&str]) -> anyhow::Result<()> {
        write!(self.out, "   the upstream got")?;
        for name in names {
            match answer.upstream(name) {
                Some(value) => write!(self.out, "  {name}: {value}")?,
                None => write!(self.out, "  no {name}")?,
            }
        }
        writeln!(self.out)?;
        Ok(())
    }

    /// What plugins do: reject, allow, change, delay, abort; and a route that turns one off.
    pub(super) async fn plugins(&mut self, echo: &Echo) -> anyhow::Result<()> {
        self.rejected_and_allowed(echo).await?;
        self.changed().await?;
        self.delayed_and_aborted(echo).await
    }

    async fn rejected_and_allowed(&mut self, echo: &Echo) -> anyhow::Result<()> {
        self.step("Rejected: the project asks for a password (basic-auth)")?;
        let reached = echo.request_count();
        let answer = self
            .ask(Ask::get("/cart", &[]), &["www-authenticate"])
            .await?;
        answer.status(401)?;
        let challenge = answer
            .response
            .headers
            .get("www-authenticate")
            .unwrap_or_default();
        anyhow::ensure!(
            challenge.contains("realm=\"shop\""),
            "expected a challenge for the realm shop, got {challenge:?}"
        );

        self.step("Rejected: the gateway keeps a robot out of every route (ua-restriction)")?;
        let robot = Ask::get(
            "/cart",
            &[("authorization", ALICE), ("user-agent", "BadBot/1.0")],
        );
        self.ask(robot, &[]).await?.status(403)?;

        self.step("Rejected and allowed: this route takes a token in place of passwords")?;
        let wrong = Ask::get("/partners", &[("x-token", "guess")]);
        self.ask(wrong, &[]).await?.status(403)?;
        let rejected = echo.request_count() - reached;
        anyhow::ensure!(
            rejected == 0,
            "expected the upstream to see none of the rejected requests, it saw {rejected}"
        );
        let right = Ask::get("/partners", &[("x-token", "open-sesame")]);
        self.ask(right, &["x-upstream"])
            .await?
            .status(200)?
            .header("x-upstream", "echo")?;

        self.step("Turned off: this route needs no password")?;
        self.ask(Ask::get("/healthz", &[]), &[])
            .await?
            .status(200)?
            .body("ok\n")?;
        Ok(())
    }

    async fn changed(&mut self) -> anyhow::Result<()> {
        self.step("Allowed and changed: headers from gateway, project and route (headers)")?;
        let ask = Ask::get("/cart", &[("authorization", ALICE), ("x-debug", "1")]);
        let answer = self.ask(ask, &["x-season", "cache-control"]).await?;
        self.show_upstream(
            &answer,
            &[
                "x-client",
                "x-project",
                "x-route",
                "x-user",
                "authorization",
                "x-debug",
            ],
        )?;
        answer
            .status(200)?
            .header("x-season", "winter")?
            .header("cache-control", "no-store")?
            .upstream_got("x-client", Some("127.0.0.1"))?
            .upstream_got("x-project", Some("shop"))?
            .upstream_got("x-route", Some("cart"))?
            .upstream_got("x-user", Some("alice"))?
            .upstream_got("authorization", None)?
            .upstream_got("x-debug", None)?;

        self.step("Changed: the body of an answer (body-rewrite)")?;
        let ask = Ask {
            path: "/echo",
            body: Some("hello, upstream"),
            headers: &[("authorization", ALICE), ("content-type", "text/plain")],
        };
        self.ask(ask, &[])
            .await?
            .status(200)?
            .body("hello, Outrider")?;
        Ok(())
    }

    async fn delayed_and_aborted(&mut self, echo: &Echo) -> anyhow::Result<()> {
        self.step("Delayed and aborted: two routes that misbehave (fault-injection)")?;
        let usual = self
            .exchange(Ask::get("/", &[("authorization", ALICE)]))
            .await?;
        usual.status(200)?;
        let slow = self
            .ask(Ask::get("/slow", &[("authorization", ALICE)]), &[])
            .await?;
        slow.status(200)?;
        writeln!(
            self.out,
            "   after {} ms; another route: {:.1} ms",
            slow.elapsed.as_millis(),
            usual.elapsed.as_secs_f64() * 1e3
        )?;
        let delay = Duration::from_millis(300);
        anyhow::ensure!(
            slow.elapsed >= delay && slow.elapsed < delay * 4,
            "expected the answer about 300 ms later, it took {:?}",
            slow.elapsed
        );
        let reached = echo.request_count();
        self.ask(
            Ask::get("/broken", &[("authorization", ALICE)]),
            &["x-upstream"],
        )
        .await?
        .status(503)?
        .body("closed for stock-taking\n")?;
        anyhow::ensure!(
            echo.request_count() == reached,
            "expected the upstream not to see the aborted request"
        );

        self.step("The same port speaks HTTP/2")?;
        let target = Target::plain(Protocol::Http2, self.target.address);
        let ask = Ask::get("/cart", &[("authorization", ALICE)]);
        let response = target
            .send(ask.request())
            .await
            .context("expected an answer by HTTP/2")?;
        let answer = Answer {
            response,
            elapsed: Duration::ZERO,
        };
        answer.status(200)?.upstream_got("x-route", Some("cart"))?;
        writeln!(
            self.out,
            "   > GET /cart (HTTP/2)\n   < {}",
            answer.response.status
        )?;
        Ok(())
    }

    /// A good change and a broken one, under load, with the connection of the first step.
    pub(super) async fn changes(
        &mut self,
        workspace: &Workspace,
        gateway: &Gateway,
    ) -> anyhow::Result<()> {
        let ask = Ask::get("/cart", &[("authorization", ALICE)]);
        let steady = SteadyPlan::new(self.target.clone(), CONNECTIONS, ask.request())
            .pause(PAUSE)
            .start()
            .await?;
        let [(before, after), (right, wrong)] = EDITS;

        self.step(&format!(
            "Changed live: one line of the file, while {CONNECTIONS} connections send requests"
        ))?;
        self.ask(ask, &["x-season"])
            .await?
            .header("x-season", "winter")?;
        writeln!(self.out, "   - {before}\n   + {after}   (saved)")?;
        workspace.edit(before, after)?;
        let saved = Instant::now();
        loop {
            let answer = self.exchange(ask).await?;
            answer.status(200)?;
            if answer.header("x-season", "summer").is_ok() {
                break;
            }
            answer.header("x-season", "winter")?;
            anyhow::ensure!(
                saved.elapsed() < IN_FORCE,
                "expected the change to be in force within {IN_FORCE:?}"
            );
            tokio::time::sleep(PAUSE).await;
        }
        let took = saved.elapsed();
        self.ask(ask, &["x-season"])
            .await?
            .header("x-season", "summer")?;
        writeln!(
            self.out,
            "   in force {} ms after it was saved",
            took.as_millis()
        )?;

        self.step("Refused: a change that is wrong; what worked goes on")?;
        let printed = gateway.line_count();
        writeln!(
            self.out,
            "   - {right}\n   + {wrong}   (saved); the command says:"
        )?;
        workspace.edit(right, wrong)?;
        let told = gateway
            .wait_for_text(printed, "prefx", IN_FORCE)
            .await
            .context("expected the command to refuse the misspelt key")?;
        for line in &told {
            writeln!(self.out, "   | {line}")?;
        }
        anyhow::ensure!(
            told.iter().any(|line| line.contains("prefix")),
            "expected the command to suggest `prefix`"
        );
        self.ask(ask, &["x-season"])
            .await?
            .status(200)?
            .header("x-season", "summer")?;

        anyhow::ensure!(
            steady.advance(50, IN_FORCE).await,
            "expected the load to go on after the changes"
        );
        let summary = steady.stop().await;
        writeln!(self.out, "   meanwhile: {summary}")?;
        anyhow::ensure!(
            summary.is_clean(),
            "expected no failed request and no closed connection"
        );
        let closed = self
            .connection
            .closed_within(Duration::from_millis(50))
            .await;
        anyhow::ensure!(
            !closed,
            "expected the connection of the first step to be open still"
        );
        writeln!(
            self.out,
            "   the connection of step 1 (from port {}) carried all of this and is still open",
            self.connection.local_address().port()
        )?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against an upstream without a gateway nothing is as claimed, and that is said.
    #[tokio::test]
    async fn a_wrong_answer_ends_the_story() {
        let echo = Echo::start("echo").await.unwrap();
        let mut out = Vec::new();
        let mut story = Story::begin(Target::http1(echo.address()), &mut out)
            .await
            .unwrap();
        let error = story.plugins(&echo).await.unwrap_err().to_string();
        assert!(error.starts_with("expected status 401, got 200"), "{error}");
        let error = story.changed().await.unwrap_err().to_string();
        assert_eq!(
            error,
            "expected the response header x-season: winter, got None"
        );
        let error = story
            .delayed_and_aborted(&echo)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("expected the answer about 300 ms later"),
            "{error}"
        );
        let told = String::from_utf8(out).unwrap();
        assert!(told.contains("1. Rejected"), "{told}");
        assert!(told.contains("   > GET /cart\n   < 200\n"), "{told}");
        assert!(
            told.contains("authorization: Basic YWxpY2U6c2VjcmV0 (alice:secret)"),
            "{told}"
        );
    }
}
