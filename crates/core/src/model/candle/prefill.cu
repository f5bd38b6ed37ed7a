// Attention among the rows of a piece (prefill), compiled together with kernels.cu. Scores are never written to global
// memory. A thread block processes 64 queries of a head over all keys that any of these queries attends to, and keeps a
// running softmax for each query (Milakov and Gimelshein, arXiv 1805.02867; Dao et al., arXiv 2205.14135). `table`
// contains three values for each row: the first row of its prefix, the end of its prefix, and the first row of its
// segment. A row attends to its prefix and to its segment up to itself, limited to the last `window` rows of both
// together. Half-precision products run on tensor cores with f32 accumulation. Scores stay in f32, and attention
// weights are rounded.

// Rows that a query attends to: its prefix, and its segment up to the query itself.
struct Seen {
  unsigned prefix, prefix_end, own, own_end;

  __device__ bool sees(unsigned key) const {
    return (key >= own && key < own_end) || (key >= prefix && key < prefix_end);
  }
  __device__ bool any(unsigned from, unsigned to) const {
    return (own < to && own_end > from) || (prefix < to && prefix_end > from && prefix < prefix_end);
  }
  __device__ bool all(unsigned from, unsigned to) const {
    return (own <= from && own_end >= to) || (prefix <= from && prefix_end >= to);
  }
  __device__ unsigned first() const { return prefix < prefix_end ? min(prefix, own) : own; }
};

// Returns the rows that a row attends to. For rows past the last one, both ranges are empty and start at the largest
// index.
__device__ Seen seen_by(const unsigned *table, unsigned row, unsigned rows, unsigned window) {
  if (row >= rows) return {~0u, 0, ~0u, 0};
  Seen of = {table[3 * (size_t)row], table[3 * (size_t)row + 1], table[3 * (size_t)row + 2], row + 1};
  const unsigned length = of.own_end - of.own, left = window > length ? window - length : 0;
  if (of.own_end > window) of.own = max(of.own, of.own_end - window);
  if (of.prefix_end > left) of.prefix = max(of.prefix, of.prefix_end - left);
  return of;
}

// Returns the factor that rescales earlier sums when the maximum score rises from `before` to `now`, both in base-2
// logarithms. Returns 0 if `before` is minus infinity, because no key was visible yet.
__device__ float decay(float before, float now) { return before == -INFINITE ? 0.0f : exp2f(before - now); }

constexpr unsigned QUERIES = 64;

// f32 kernel with 256 threads. Each thread computes the scores of 4 queries for 4 keys, and up to 4 of every 64 output
// channels of these queries.
template <int D>
__device__ void prefill_f32(const float *queries, const float *keys, const float *values, const unsigned *table,
                            float *out, unsigned rows, unsigned heads, unsigned shared, unsigned width, unsigned window,
                            float scale, float cap) {
  constexpr unsigned KEYS = 64, PART = 32, WIDE = PART + 4, CHANNELS = D < 64 ? D : 64, EACH = CHANNELS / 16;
  __shared__ alignas(16) float q[QUERIES * WIDE], kv[KEYS * 64], p[QUERIES][KEYS + 4];
  __shared__ unsigned first;
  const unsigned head = blockIdx.x % heads, top = blockIdx.x / heads * QUERIES, x = threadIdx.x % 16, y = threadIdx.x / 16;
  const size_t of_query = (size_t)heads * width, of_key = (size_t)shared * width;
  queries += head * width;
  keys += head / (heads / shared) * width;
  values += head / (heads / shared) * width;
  if (threadIdx.x == 0) first = ~0u;
  __syncthreads();
  Seen seen[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    seen[i] = seen_by(table, top + y * 4 + i, rows, window);
    if (x == 0) atomicMin(&first, seen[i].first());
  }
  __syncthreads();
  const unsigned end = min(rows, top + QUERIES);
  float most[4], sum[4], context[4][D / 64 + (D < 64)][EACH];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    most[i] = -INFINITE;
    sum[i] = 0.0f;
#pragma unroll
    for (int part = 0; part < D / 64 + (D < 64); part++)
#pragma unroll
      for (int j = 0; j < EACH; j++) context[i][part][j] = 0.0f;
  }
  for (unsigned from = first; from < end; from += KEYS) {
    bool any = false;
#pragma unroll
    for (int i = 0; i < 4; i++) any |= seen[i].any(from, from + KEYS);
    if (!__syncthreads_or(any)) continue;
    float score[4][4] = {};
    for (unsigned part = 0; part < width; part += PART) {
      __syncthreads();
      for (unsigned i = threadIdx.x; i < 64 * PART; i += 256) {
        const unsigned row = i / PART, channel = part + i % PART, at = row * WIDE + i % PART;
        q[at] = top + row < rows && channel < width ? queries[(top + row) * of_query + channel] : 0.0f;
        kv[at] = from + row < end && channel < width ? keys[(from + row) * of_key + channel] : 0.0f;
      }
      __syncthreads();
#pragma unroll
      for (unsigned c = 0; c < PART; c += 4) {
        float4 a[4], b[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          a[i] = *(const float4 *)&q[(y * 4 + i) * WIDE + c];
          b[i] = *(const float4 *)&kv[(x + 16 * i) * WIDE + c];
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
          for (int j = 0; j < 4; j++)
            score[i][j] += a[i].x * b[j].x + a[i].y * b[j].y + a[i].z * b[j].z + a[i].w * b[j].w;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float now = most[i];
#pragma unroll
      for (int j = 0; j < 4; j++) {
        float s = score[i][j] * scale;
        if (cap > 0.0f) s = tanhf(s / cap) * cap;
        score[i][j] = seen[i].sees(from + x + 16 * j) ? s * 1.44269504f : -INFINITE;
        now = fmaxf(now, score[i][j]);
      }
      for (unsigned apart = 8; apart > 0; apart /= 2) now = fmaxf(now, __shfl_xor_sync(~0u, now, apart));
      const float old = decay(most[i], now);
      most[i] = now;
      sum[i] *= old;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const float weight = score[i][j] == -INFINITE ? 0.0f : exp2f(score[i][j] - now);
        sum[i] += weight;
        p[y * 4 + i][x + 16 * j] = weight;
      }
#pragma unroll
      for (int part = 0; part < D / 64 + (D < 64); part++)
#pragma unroll
        for (int j = 0; j < EACH; j++) context[i][part][j] *= old;
    }
#pragma unroll
    for (int part = 0; part < D / 64 + (D < 64); part++) {
      __syncthreads();
      for (unsigned i = threadIdx.x; i < KEYS * CHANNELS; i += 256) {
        const unsigned row = i / CHANNELS, channel = part * 64 + i % CHANNELS;
        kv[i] = from + row < end && channel < width ? values[(from + row) * of_key + channel] : 0.0f;
      }
      __syncthreads();
#pragma unroll 4
      for (unsigned key = 0; key < KEYS; key++) {
        float value[EACH];
#pragma unroll
        for (int j = 0; j < EACH; j++) value[j] = kv[key * CHANNELS + x * EACH + j];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float weight = p[y * 4 + i][key];
#pragma unroll
          for (int j = 0; j < EACH; j++) context[i][part][j] += weight * value[j];
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    for (unsigned apart = 8; apart > 0; apart /= 2) sum[i] += __shfl_xor_sync(~0u, sum[i], apart);
    const unsigned row = top + y * 4 + i;
    if (row >= rows) continue;
#pragma unroll
    for (int part = 0; part < D / 64 + (D < 64); part++)
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        const unsigned channel = part * 64 + x * EACH + j;
        if (channel < width) out[row * of_query + head * width + channel] = context[i][part][j] / sum[i];
      }
  }
}

#if __CUDA_ARCH__ >= 800
struct Bf16 {
  // Computes c += a * b on tensor cores, for the warp's tiles a [16, 16], b [16, 8] and c [16, 8].
  static __device__ void product(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  // Rounds two values to bf16 and packs them into a word.
  static __device__ unsigned pair(float x, float y) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
  }
};
struct F16 {
  static __device__ void product(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
  static __device__ unsigned pair(float x, float y) {
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
  }
};

// Loads four 8x8 matrices. Each thread passes the address of one matrix row and receives two values of each matrix.
__device__ void matrices(unsigned (&to)[4], const half_t *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
}
// Like `matrices`, but transposes each matrix.
__device__ void turned_matrices(unsigned (&to)[4], const half_t *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"((unsigned)__cvta_generic_to_shared(row))
               : "memory");
}

// Half-precision kernel with 128 threads. Each warp processes 16 queries. Each thread stores values of two queries that
// are 8 rows apart.
template <int D, typename N>
__device__ void prefill_half(const half_t *queries, const half_t *keys, const half_t *values, const unsigned *table,
                             half_t *out, unsigned rows, unsigned heads, unsigned shared, unsigned width,
                             unsigned window, float scale, float cap) {
  // Rows in shared memory are padded by 16 bytes, so that eight rows are read at once without bank conflicts.
  constexpr unsigned KEYS = D > 128 ? 32 : 64, STRIDE = D + 8;
  __shared__ alignas(16) half_t k[KEYS * STRIDE], v[KEYS * STRIDE];
  __shared__ unsigned first;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const unsigned head = blockIdx.x % heads, top = blockIdx.x / heads * QUERIES;
  const unsigned of[2] = {top + warp * 16 + lane / 4, top + warp * 16 + lane / 4 + 8}, pair = lane % 4 * 2;
  const size_t of_query = (size_t)heads * width, of_key = (size_t)shared * width;
  queries += head * width;
  keys += head / (heads / shared) * width;
  values += head / (heads / shared) * width;
  if (threadIdx.x == 0) first = ~0u;
  __syncthreads();
  Seen seen[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    seen[i] = seen_by(table, of[i], rows, window);
    if (lane % 4 == 0) atomicMin(&first, seen[i].first());
  }
  unsigned query[D / 16][4];
#pragma unroll
  for (unsigned c = 0; c < D / 16; c++)
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
      const unsigned row = of[i % 2], channel = c * 16 + i / 2 * 8 + pair;
      query[c][i] = row < rows && channel < width ? *(const unsigned *)(queries + row * of_query + channel) : 0;
    }
  __syncthreads();
  const unsigned end = min(rows, top + QUERIES);
  float most[2] = {-INFINITE, -INFINITE}, sum[2] = {}, context[D / 8][4] = {};
  for (unsigned from = first; from < end; from += KEYS) {
    const bool any = seen[0].any(from, from + KEYS) || seen[1].any(from, from + KEYS);
    // After this barrier, all threads have finished reading the previous keys.
    if (!__syncthreads_or(any)) continue;
    for (unsigned i = threadIdx.x; i < KEYS * D / 8; i += 128) {
      const unsigned row = i / (D / 8), channel = i % (D / 8) * 8, at = row * STRIDE + channel;
      const bool there = from + row < end && channel < width;
      const size_t place = (from + row) * of_key + channel;
      *(uint4 *)&k[at] = there ? *(const uint4 *)(keys + place) : uint4{};
      *(uint4 *)&v[at] = there ? *(const uint4 *)(values + place) : uint4{};
    }
    __syncthreads();
    float score[KEYS / 8][4] = {};
#pragma unroll
    for (unsigned c = 0; c < D / 16; c++)
#pragma unroll
      for (unsigned n = 0; n < KEYS / 16; n++) {
        unsigned b[4];
        matrices(b, &k[(n * 16 + lane / 16 * 8 + lane % 8) * STRIDE + c * 16 + lane / 8 % 2 * 8]);
        N::product(score[2 * n], query[c], b[0], b[1]);
        N::product(score[2 * n + 1], query[c], b[2], b[3]);
      }
    const bool whole = seen[0].all(from, from + KEYS) && seen[1].all(from, from + KEYS);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      float now = most[i];
#pragma unroll
      for (unsigned n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          float s = score[n][2 * i + j] * scale;
          if (cap > 0.0f) s = tanhf(s / cap) * cap;
          s = whole || seen[i].sees(from + n * 8 + pair + j) ? s * 1.44269504f : -INFINITE;
          score[n][2 * i + j] = s;
          now = fmaxf(now, s);
        }
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 1));
      now = fmaxf(now, __shfl_xor_sync(~0u, now, 2));
      const float old = decay(most[i], now);
      most[i] = now;
      sum[i] *= old;
#pragma unroll
      for (unsigned n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
          const float s = score[n][2 * i + j], weight = s == -INFINITE ? 0.0f : exp2f(s - now);
          score[n][2 * i + j] = weight;
          sum[i] += weight;
        }
#pragma unroll
      for (unsigned n = 0; n < D / 8; n++) {
        context[n][2 * i] *= old;
        context[n][2 * i + 1] *= old;
      }
    }
#pragma unroll
    for (unsigned c = 0; c < KEYS / 16; c++) {
      const unsigned a[4] = {
          N::pair(score[2 * c][0], score[2 * c][1]), N::pair(score[2 * c][2], score[2 * c][3]),
          N::pair(score[2 * c + 1][0], score[2 * c + 1][1]), N::pair(score[2 * c + 1][2], score[2 * c + 1][3])};
#pragma unroll
      for (unsigned n = 0; n < D / 16; n++) {
        unsigned b[4];
        turned_matrices(b, &v[(c * 16 + lane / 8 % 2 * 8 + lane % 8) * STRIDE + n * 16 + lane / 16 * 8]);
        N::product(context[2 * n], a, b[0], b[1]);
        N::product(context[2 * n + 1], a, b[2], b[3]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
    sum[i] += __shfl_xor_sync(~0u, sum[i], 2);
    if (of[i] >= rows) continue;
#pragma unroll
    for (unsigned n = 0; n < D / 8; n++)
      if (n * 8 < width)
        *(unsigned *)(out + of[i] * of_query + head * width + n * 8 + pair) =
            N::pair(context[n][2 * i] / sum[i], context[n][2 * i + 1] / sum[i]);
  }
}
#endif

#define PREFILL(T, NAME, WIDTH, CALL)                                                                                  \
  extern "C" __global__ void prefill_##NAME##_##WIDTH(                                                                 \
      const T *queries, const T *keys, const T *values, const unsigned *table, T *out, unsigned rows, unsigned heads,  \
      unsigned shared, unsigned width, unsigned window, float scale, float cap) {                                      \
    CALL(queries, keys, values, table, out, rows, heads, shared, width, window, scale, cap);                           \
  }

// WIDTH is defined by a compiler option, because register usage grows with it and a backbone has only one head width.
#define PREFILLS(WIDTH)                                                                                                \
  PREFILL(float, f32, WIDTH, prefill_f32<WIDTH>)                                                                       \
  PREFILL_HALF(WIDTH)

#if __CUDA_ARCH__ >= 800
#define PREFILL_HALF(WIDTH)                                                                                            \
  PREFILL(half_t, bf16, WIDTH, (prefill_half<WIDTH, Bf16>))                                                            \
  PREFILL(half_t, f16, WIDTH, (prefill_half<WIDTH, F16>))
#else
#define PREFILL_HALF(WIDTH)
#endif

PREFILLS(WIDTH)
