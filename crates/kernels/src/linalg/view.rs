//! Strided matrix views over slices, used as operands and destinations of matrix products.

/// Read-only matrix view with arbitrary strides.
#[derive(Clone, Copy)]
pub struct MatrixView<'a, T> {
    pub(super) data: &'a [T],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

impl<'a, T> MatrixView<'a, T> {
    /// Creates a view of contiguous rows of `columns` elements.
    pub fn rows(data: &'a [T], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Creates a view of rows of `columns` elements with row stride `row_stride`.
    pub fn strided(data: &'a [T], rows: usize, columns: usize, row_stride: usize) -> Self {
        Self { data, rows, columns, row_stride, column_stride: 1 }.check_bounds()
    }

    pub fn row_count(&self) -> usize {
        self.rows
    }

    pub fn column_count(&self) -> usize {
        self.columns
    }

    /// Returns whether the elements of each row are contiguous.
    pub(super) fn has_contiguous_rows(&self) -> bool {
        self.column_stride == 1
    }

    /// Returns the elements of one row.
    ///
    /// # Panics
    /// Panics if the row does not exist or its elements are not contiguous.
    pub(super) fn row(&self, row: usize) -> &'a [T] {
        assert!(row < self.rows && self.column_stride == 1, "missing or non-contiguous row in a matrix view");
        &self.data[row * self.row_stride..][..self.columns]
    }

    /// Transposes the view.
    #[must_use]
    pub fn t(self) -> Self {
        Self {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }

    /// Returns the elements from the first to the last row, and the row stride.
    ///
    /// # Panics
    /// Panics if the matrix has no rows or the elements of a row are not contiguous.
    pub(super) fn elements(&self) -> (&'a [T], usize) {
        assert!(self.rows > 0 && self.column_stride == 1, "a matrix view without rows or with non-contiguous rows");
        (&self.data[..(self.rows - 1) * self.row_stride + self.columns], self.row_stride)
    }

    fn check_bounds(self) -> Self {
        if self.rows > 0 && self.columns > 0 {
            let last = (self.rows - 1) * self.row_stride + (self.columns - 1) * self.column_stride;
            assert!(last < self.data.len(), "the matrix view exceeds its slice");
        }
        self
    }
}

/// Mutable matrix view with contiguous row elements and row stride `row_stride`.
pub struct MatrixViewMut<'a, T> {
    pub(super) data: &'a mut [T],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
}

impl<'a, T> MatrixViewMut<'a, T> {
    pub fn rows(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    pub fn strided(data: &'a mut [T], rows: usize, columns: usize, row_stride: usize) -> Self {
        assert!(columns <= row_stride || rows <= 1, "rows of an output matrix must not overlap");
        if rows > 0 && columns > 0 {
            assert!((rows - 1) * row_stride + columns <= data.len(), "the matrix view exceeds its slice");
        }
        Self { data, rows, columns, row_stride }
    }

    pub(super) fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row index out of range in an output matrix");
        &mut self.data[row * self.row_stride..][..self.columns]
    }
}

/// How a product updates its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Overwrite the destination.
    Replace,
    /// Add to the destination.
    Add,
}
