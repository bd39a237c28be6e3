//! The report in a real Chromium: it opens without an error at the widths of a phone and of a desk, in light and dark,
//! and prints. Needs Chromium and its driver (Debian: chromium, chromium-driver); `make test-report` runs it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod known_run;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use outrider_lab_report::render;
use serde_json::{Value, json};

/// What the page is asked: does it scroll sideways, and does a text of a chart lie outside of its chart?
const LAYOUT: &str = "\
for (const details of document.querySelectorAll('details')) details.open = true;
const outside = [];
for (const svg of document.querySelectorAll('svg')) {
  const view = svg.viewBox.baseVal;
  for (const text of svg.querySelectorAll('text')) {
    const box = text.getBBox();
    if (box.x < -1 || box.y < -1 || box.x + box.width > view.width + 1 || box.y + box.height > view.height + 1)
      outside.push(text.textContent);
  }
}
return {
  sideways: document.documentElement.scrollWidth - window.innerWidth,
  outside: outside,
  charts: document.querySelectorAll('svg').length,
  small: [...document.querySelectorAll('p, td, th')].filter(e => parseFloat(getComputedStyle(e).fontSize) < 12).length,
  paper: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
};";

/// A session of WebDriver (<https://www.w3.org/TR/webdriver2/>). Dropping it ends the browser and its driver.
struct Browser {
    driver: Child,
    session: String,
}

impl Browser {
    fn start() -> Self {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .spawn()
            .expect("chromedriver runs; on Debian: apt install chromium chromium-driver");
        let mut lines = BufReader::new(driver.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let port = lines
            .find_map(|line| {
                line.split("successfully on port ")
                    .nth(1)?
                    .trim_end_matches('.')
                    .parse::<u16>()
                    .ok()
            })
            .expect("chromedriver says its port");
        // Its further lines are read, so that it never waits for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        let mut browser = Self {
            driver,
            session: format!("http://127.0.0.1:{port}/session"),
        };
        let options = json!({ "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"] });
        let capabilities =
            json!({ "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } });
        let value = browser.post(
            "",
            &json!({ "capabilities": { "alwaysMatch": capabilities } }),
        );
        browser.session = format!(
            "{}/{}",
            browser.session,
            value["sessionId"].as_str().unwrap()
        );
        browser
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let mut response = ureq::post(format!("{}{path}", self.session))
            .content_type("application/json")
            .send(body.to_string())
            .unwrap();
        let answer: Value =
            serde_json::from_str(&response.body_mut().read_to_string().unwrap()).unwrap();
        answer["value"].clone()
    }

    fn chrome(&self, command: &str, parameters: &Value) {
        self.post(
            "/goog/cdp/execute",
            &json!({ "cmd": command, "params": parameters }),
        );
    }

    fn ask(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = ureq::delete(&self.session).call();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

#[test]
#[ignore = "needs Chromium; make test-report runs it"]
fn report_opens_at_each_width_in_light_and_dark_and_prints() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let browser = Browser::start();
    for (run, charts) in [(known_run::run(), 4), (known_run::run_at_rates(), 9)] {
        std::fs::write(&page, &render(&run).unwrap().files[0].1).unwrap();
        check(&browser, &page, charts);
    }
}

fn check(browser: &Browser, page: &Path, charts: usize) {
    let mut colours = Vec::new();
    for scheme in ["light", "dark"] {
        let feature = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        browser.chrome("Emulation.setEmulatedMedia", &feature);
        for (width, is_phone) in [(390, true), (1280, false)] {
            let metrics = json!({ "width": width, "height": 844, "deviceScaleFactor": 1, "mobile": is_phone });
            browser.chrome("Emulation.setDeviceMetricsOverride", &metrics);
            browser.post(
                "/url",
                &json!({ "url": format!("file://{}", page.display()) }),
            );
            let layout = browser.ask(LAYOUT);
            let about = format!("{scheme}, {width}: {layout}");
            assert!(layout["sideways"].as_i64().unwrap() <= 0, "{about}");
            assert_eq!(layout["outside"], json!([]), "{about}");
            assert_eq!(layout["charts"], charts, "{about}");
            assert_eq!(layout["small"], 0, "{about}");
            colours.push((layout["paper"].clone(), layout["ink"].clone()));
        }
    }
    assert_eq!(colours[0], colours[1]);
    assert_ne!(colours[0].0, colours[2].0, "dark has another paper");
    assert_ne!(colours[0].1, colours[2].1, "and another ink");
    let messages = browser.post("/se/log", &json!({ "type": "browser" }));
    assert_eq!(messages, json!([]));
    let paper = browser.post("/print", &json!({ "background": true }));
    let paper = BASE64_STANDARD.decode(paper.as_str().unwrap()).unwrap();
    assert!(
        paper.starts_with(b"%PDF-") && paper.len() > 20_000,
        "{} bytes",
        paper.len()
    );
}
