//! Published implementations against this one (oracle `official`; its README has the commits, the settings and the tolerances).

mod authors;
mod others;
pub(crate) mod setting;
