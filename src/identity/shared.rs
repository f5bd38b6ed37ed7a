//! Parts that stand behind an `Arc`, as files have them.

/// One that is always there.
pub(super) mod part {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<T: Serialize, S: Serializer>(part: &Arc<T>, to: S) -> Result<S::Ok, S::Error> {
        T::serialize(part, to)
    }

    pub(in super::super) fn deserialize<'de, T, D>(from: D) -> Result<Arc<T>, D::Error>
    where
        T: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        T::deserialize(from).map(Arc::new)
    }
}

/// One that may be absent.
pub(super) mod perhaps {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[allow(clippy::ref_option, reason = "serde calls it so")]
    pub(in super::super) fn serialize<T, S>(part: &Option<Arc<T>>, to: S) -> Result<S::Ok, S::Error>
    where
        T: Serialize,
        S: Serializer,
    {
        part.as_deref().serialize(to)
    }

    pub(in super::super) fn deserialize<'de, T, D>(from: D) -> Result<Option<Arc<T>>, D::Error>
    where
        T: Deserialize<'de>,
        D: Deserializer<'de>,
    {
        Ok(Option::<T>::deserialize(from)?.map(Arc::new))
    }
}
