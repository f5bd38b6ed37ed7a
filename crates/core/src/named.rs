//! Enums whose values files and commands call by name.

/// Gives an enum all its values, and each a name, which is how it is shown.
#[macro_export]
macro_rules! names {
    ($type:ident: $($value:ident = $name:literal),+ $(,)?) => {
        impl $type {
            /// All of them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Returns the name in files and commands.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

/// Gives an enum all its values, each a name, and a way back from that.
#[macro_export]
macro_rules! named {
    ($type:ident: $($value:ident = $name:literal),+ $(,)?) => {
        $crate::names!($type: $($value = $name),+);

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> std::result::Result<Self, String> {
                let known = Self::ALL.into_iter().find(|value| value.name() == text);
                known.ok_or_else(|| $crate::error::unknown_value(text, &Self::ALL.map(Self::name)))
            }
        }
    };
}

pub(crate) use named;
