//! Handwritten digits in the IDX format.

use super::packed::{Unreadable, unpacked};
use phalanx_graph::{Tensor, TensorError};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum DigitsError {
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("{} is not an IDX file of {wanted}", file.display())]
    Format { file: PathBuf, wanted: &'static str },
    #[error("{}: {n_images} images, {n_labels} labels", folder.display())]
    Count { folder: PathBuf, n_images: usize, n_labels: usize },
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// Images `[n, 1, height, width]` of numbers around zero, and their labels `[n]`.
#[derive(Clone, Debug)]
pub struct Digits {
    dims: [usize; 4],
    pixels: Vec<f32>,
    labels: Vec<i64>,
}

impl Digits {
    /// `part` is `train` or `t10k`, as the files are named.
    pub fn read(folder: &Path, part: &str) -> Result<Digits, DigitsError> {
        let images = folder.join(format!("{part}-images-idx3-ubyte.gz"));
        let labels = folder.join(format!("{part}-labels-idx1-ubyte.gz"));
        let (dims, pixels) = idx(&images, 3, "images")?;
        let (counts, numbers) = idx(&labels, 1, "labels")?;
        if dims[0] != counts[0] {
            let (n_images, n_labels) = (dims[0], counts[0]);
            return Err(DigitsError::Count { folder: folder.to_path_buf(), n_images, n_labels });
        }
        Ok(Digits {
            dims: [dims[0], 1, dims[1], dims[2]],
            pixels: pixels.iter().map(|&p| (f32::from(p) / 255.0 - 0.1307) / 0.3081).collect(),
            labels: numbers.iter().map(|&n| i64::from(n)).collect(),
        })
    }

    pub fn len(&self) -> usize {
        self.dims[0]
    }

    /// These of them, in this order.
    pub fn pick(&self, which: &[usize]) -> Result<(Tensor, Tensor), DigitsError> {
        self.pick_moved(which, |_| (0, 0))
    }

    /// The same, each moved down and to the right by some pixels: a network shall not learn where digits stand.
    pub fn pick_moved(
        &self,
        which: &[usize],
        by: impl Fn(usize) -> (isize, isize),
    ) -> Result<(Tensor, Tensor), DigitsError> {
        let [_, _, height, width] = self.dims;
        let size = height * width;
        // The corners of digits are background.
        let blank = self.pixels.first().copied().unwrap_or_default();
        let mut pixels = Vec::with_capacity(which.len() * size);
        for &i in which {
            let image = &self.pixels[i * size..][..size];
            let (down, right) = by(i);
            for at in 0..size {
                let (y, x) = ((at / width) as isize - down, (at % width) as isize - right);
                let inside = (0..height as isize).contains(&y) && (0..width as isize).contains(&x);
                pixels.push(if inside { image[y as usize * width + x as usize] } else { blank });
            }
        }
        let labels: Vec<i64> = which.iter().map(|&i| self.labels[i]).collect();
        let [_, c, h, w] = self.dims;
        Ok((Tensor::new(&[which.len(), c, h, w], &pixels)?, Tensor::new(&[which.len()], &labels)?))
    }

    pub fn all(&self) -> Result<(Tensor, Tensor), DigitsError> {
        self.pick(&(0..self.len()).collect::<Vec<_>>())
    }
}

/// Dimensions and bytes of an IDX file.
fn idx(file: &Path, n_dims: usize, wanted: &'static str) -> Result<(Vec<usize>, Vec<u8>), DigitsError> {
    parse(&unpacked(file)?, n_dims).ok_or_else(|| DigitsError::Format { file: file.to_path_buf(), wanted })
}

fn parse(bytes: &[u8], n_dims: usize) -> Option<(Vec<usize>, Vec<u8>)> {
    const BYTES: u8 = 8;
    let (magic, rest) = bytes.split_at_checked(4)?;
    let (sizes, data) = rest.split_at_checked(4 * n_dims)?;
    let dims: Vec<usize> =
        sizes.chunks_exact(4).map(|d| u32::from_be_bytes([d[0], d[1], d[2], d[3]]) as usize).collect();
    let n = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
    (magic == [0, 0, BYTES, n_dims as u8] && data.len() == n).then(|| (dims, data.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idx_files_are_read_and_nonsense_is_refused() {
        let good = [0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9];
        assert_eq!(parse(&good, 1), Some((vec![3], vec![7, 8, 9])));
        for cut in 0..good.len() {
            assert_eq!(parse(&good[..cut], 1), None, "{cut}");
        }
        assert_eq!(parse(&good, 3), None);
        assert_eq!(parse(&[0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255], 2), None, "huge");
    }

    #[test]
    fn the_digits_of_the_project_are_there() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data");
        let digits = Digits::read(&folder, "t10k").unwrap();
        let (images, labels) = digits.pick(&[3, 1]).unwrap();
        assert_eq!((digits.len(), images.dims(), labels.dims()), (1000, &[2, 1, 28, 28][..], &[2][..]));
        let (moved, _) = digits.pick_moved(&[3], |_| (1, 2)).unwrap();
        let (images, moved) = (images.data::<f32>().unwrap(), moved.data::<f32>().unwrap());
        assert_eq!(moved[29 * 14 + 28 + 2], images[29 * 14]);
        assert!(matches!(Digits::read(&folder, "none"), Err(DigitsError::Unreadable(_))));
    }
}
