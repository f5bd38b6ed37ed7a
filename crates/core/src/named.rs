//! Macros for enums whose variants have names in files and commands.

/// Implements `ALL`, `name` and `Display` for an enum.
#[macro_export]
macro_rules! names {
    ($type:ident: $($value:ident = $name:literal),+ $(,)?) => {
        impl $type {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// Returns the name used in files and commands.
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

/// Implements `ALL`, `name`, `Display` and `FromStr` for an enum.
#[macro_export]
macro_rules! named {
    ($type:ident: $($value:ident = $name:literal),+ $(,)?) => {
        $crate::names!($type: $($value = $name),+);

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> std::result::Result<Self, String> {
                let known = Self::ALL.into_iter().find(|value| value.name() == text);
                known.ok_or_else(|| $crate::error::unknown_value_message(text, &Self::ALL.map(Self::name)))
            }
        }
    };
}

pub(crate) use named;
