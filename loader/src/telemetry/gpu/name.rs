//! How a GPU is named: by UUID or PCI id, in every spelling that users and tools have. Never by a number, since CUDA, NVML
//! and `/dev` count differently.

use std::fmt;

use crate::error::{Error, Result};

/// What a GPU is called by the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GpuIdentity {
    /// `GPU-…`, or `MIG-…` of a part of one.
    pub uuid: String,
    /// `domain:bus:device.function`; empty for a part.
    pub pci: String,
    /// The model.
    pub model: String,
}

/// A GPU as a user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuName {
    /// A UUID in lower case without its prefix, or the beginning of one.
    Uuid {
        /// Whether it names a part of a GPU.
        is_part: bool,
        /// Hexadecimal digits and hyphens.
        digits: String,
    },
    /// Domain, bus and device.
    Pci(u32, u32, u32),
}

impl GpuName {
    /// Reads a UUID (with or without `GPU-`, `MIG-` or `MIG-GPU-`, in any case, also abbreviated as `CUDA_VISIBLE_DEVICES`
    /// allows) or a PCI id (`3b:00.0`, `0000:3B:00.0`, `00000000:3b:00.0`, with or without the function).
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for anything else, numbers among it.
    pub fn parse(text: &str) -> Result<Self> {
        let name = text.trim().to_ascii_lowercase();
        let refuse = |why: &str| {
            Err(Error::config(format!(
                "{text:?} names no GPU: {why}; use a UUID (GPU-…, MIG-…) or a PCI id (0000:3b:00.0), as nvidia-smi -L and -q \
                 show them"
            )))
        };
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) && name.len() < 8 {
            return refuse("CUDA and NVML number GPUs differently");
        }
        if name.contains(':') && !name.contains('/') {
            return parse_pci(&name).map_or_else(|| refuse("it is no PCI id"), Ok);
        }
        let (is_part, digits) = match name.strip_prefix("mig-") {
            Some(rest) => (true, rest.strip_prefix("gpu-").unwrap_or(rest)),
            None => (false, name.strip_prefix("gpu-").unwrap_or(&name)),
        };
        let is_uuid = digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-' || (is_part && byte == b'/'));
        // Four digits are the fewest that CUDA_VISIBLE_DEVICES is seen with.
        if !is_uuid || digits.len() < 4 {
            return refuse("it is no UUID");
        }
        Ok(Self::Uuid { is_part, digits: digits.to_owned() })
    }

    /// Whether it names that GPU.
    pub fn matches(&self, identity: &GpuIdentity) -> bool {
        match self {
            Self::Pci(domain, bus, device) => {
                parse_pci(&identity.pci.to_ascii_lowercase()) == Some(Self::Pci(*domain, *bus, *device))
            }
            Self::Uuid { is_part, digits } => match Self::parse(&identity.uuid) {
                Ok(Self::Uuid { is_part: is_other_part, digits: other }) => {
                    *is_part == is_other_part && other.starts_with(digits.as_str())
                }
                _ => false,
            },
        }
    }

    /// The only GPU of `identities` that it names.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where none has that name, or several begin with it; the message has all there are.
    pub fn find(&self, identities: &[GpuIdentity]) -> Result<usize> {
        let mut found = (0..identities.len()).filter(|at| self.matches(&identities[*at]));
        match (found.next(), found.next()) {
            (Some(at), None) => Ok(at),
            (first, _) => {
                let all: Vec<String> =
                    identities.iter().map(|each| format!("{} at {} ({})", each.uuid, each.pci, each.model)).collect();
                let how = if first.is_some() { "several GPUs" } else { "no GPU" };
                Err(Error::config(format!("{self} names {how}; there are: {}", all.join(", "))))
            }
        }
    }
}

impl fmt::Display for GpuName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid { is_part: true, digits } => write!(formatter, "MIG-{digits}"),
            Self::Uuid { is_part: false, digits } => write!(formatter, "GPU-{digits}"),
            Self::Pci(domain, bus, device) => write!(formatter, "{domain:04x}:{bus:02x}:{device:02x}.0"),
        }
    }
}

/// `[domain:]bus:device[.function]` in lower-case hexadecimal.
fn parse_pci(name: &str) -> Option<GpuName> {
    let (place, function) = name.split_once('.').unwrap_or((name, "0"));
    let parts: Vec<u32> =
        place.split(':').map(|part| u32::from_str_radix(part, 16)).collect::<std::result::Result<_, _>>().ok()?;
    let is_function = function.len() == 1 && function.bytes().all(|byte| byte.is_ascii_digit());
    match (is_function, parts.as_slice()) {
        (true, [bus, device]) => Some(GpuName::Pci(0, *bus, *device)),
        (true, [domain, bus, device]) => Some(GpuName::Pci(*domain, *bus, *device)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus() -> [GpuIdentity; 3] {
        let gpu = |uuid: &str, pci: &str| GpuIdentity { uuid: uuid.into(), pci: pci.into(), model: "H200".into() };
        [
            gpu("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "00000000:3B:00.0"),
            gpu("GPU-8932ffff-d72c-4106-c12f-20bd9faed9f6", "00000000:AF:00.0"),
            gpu("MIG-11112222-3333-4444-5555-666677778888", ""),
        ]
    }

    #[test]
    fn every_spelling_finds_its_gpu() {
        let check = |name: &str, expected: usize| {
            assert_eq!(GpuName::parse(name).unwrap().find(&gpus()).unwrap(), expected, "{name}");
        };
        check("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", 0);
        check("8932f937-d72c-4106-c12f-20bd9faed9f6", 0);
        check("gpu-8932F937", 0);
        check(" GPU-8932ff ", 1);
        check("3b:00.0", 0);
        check("0000:3B:00.0", 0);
        check("00000000:af:00", 1);
        check("MIG-11112222-3333-4444-5555-666677778888", 2);
    }

    #[test]
    fn what_names_no_gpu_or_two_is_refused_with_what_there_is() {
        let refused = |name: &str| GpuName::parse(name).and_then(|name| name.find(&gpus())).unwrap_err().to_string();
        assert!(refused("0").contains("number GPUs differently"), "{}", refused("0"));
        assert!(refused("cuda:0").contains("no PCI id"));
        assert!(refused("fast").contains("no UUID"));
        assert!(refused("GPU-8932").contains("several GPUs; there are: GPU-8932f937"));
        assert!(refused("01:00.0").contains("no GPU; there are"));
        // A part is not the GPU whose digits it would have.
        assert!(refused("MIG-8932f937").contains("no GPU"));
    }
}
