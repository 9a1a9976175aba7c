//! Which parameter server keeps which variable: one after the other, in the order in which variables are made.

use std::fmt;

/// A placement that can be printed: each variable in turn goes to the next server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRotation {
    n_servers: u32,
    placed: Vec<String>,
}

impl ServerRotation {
    pub fn new(n_servers: u32) -> ServerRotation {
        ServerRotation { n_servers, placed: Vec::new() }
    }

    /// Places the next variable and returns its server; none where there are no servers, and the worker keeps it. A name that was placed before
    /// stays where it is.
    pub fn place(&mut self, variable: &str) -> Option<u32> {
        let at = self.placed.iter().position(|name| name == variable).unwrap_or_else(|| {
            self.placed.push(variable.to_string());
            self.placed.len() - 1
        });
        self.server_at(at)
    }

    fn server_at(&self, at: usize) -> Option<u32> {
        (self.n_servers > 0).then(|| at as u32 % self.n_servers)
    }

    /// What a server is called in a placement.
    pub fn device(server: Option<u32>) -> String {
        server.map_or("worker".to_string(), |server| format!("/job:ps/task:{server}"))
    }
}

/// A line for each variable.
impl fmt::Display for ServerRotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.placed.is_empty() {
            return match self.n_servers {
                0 => f.write_str("variables stay on their workers"),
                n => write!(
                    f,
                    "variables go round robin to {n} parameter server{}",
                    if n == 1 { "" } else { "s" }
                ),
            };
        }
        let lines = self
            .placed
            .iter()
            .enumerate()
            .map(|(at, name)| format!("{name} -> {}", ServerRotation::device(self.server_at(at))));
        f.write_str(&lines.collect::<Vec<_>>().join("\n"))
    }
}
