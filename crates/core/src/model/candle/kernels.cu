// Operations of a decoder layer, each in one pass over memory. The kernels are compiled when a backbone first computes
// on a CUDA device. They implement functions of ops.rs and head.rs, and attention over the KV cache. Each result is
// computed in f32 and rounded once. A row is processed by a warp of 32 threads or by a thread block.

#define INFINITE __int_as_float(0x7f800000)
typedef unsigned short half_t;

__device__ float of_f32(float x) { return x; }
__device__ float to_f32(float x) { return x; }
__device__ float of_bf16(half_t x) { return __uint_as_float((unsigned)x << 16); }
__device__ half_t to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if (x != x) return (half_t)(bits >> 16 | 0x40);
  return (half_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
__device__ float of_f16(half_t x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}
__device__ half_t to_f16(float x) {
  half_t y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}

// Running maximum of a set of values, and the sum of e^(value - maximum).
struct Sum {
  float most, sum;
};

// Adds a value. NaN never becomes the maximum, but makes the sum NaN. Minus infinity adds nothing to the sum.
__device__ void add(Sum &to, float x) {
  if (x > to.most) {
    to.sum = to.sum * expf(to.most - x) + 1.0f;
    to.most = x;
  } else if (x != -INFINITE) {
    to.sum += expf(x - to.most);
  }
}

// Combines the running sums of two sets of values.
__device__ Sum merge(Sum a, Sum b) {
  float most = fmaxf(a.most, b.most);
  float of_a = a.most == -INFINITE ? a.sum : a.sum * expf(a.most - most);
  float of_b = b.most == -INFINITE ? b.sum : b.sum * expf(b.most - most);
  return {most, of_a + of_b};
}

// Computes the log-sum-exp and the argmax (lowest token id on ties) of each row of logits [rows, vocab]. Each row is
// processed by one thread block.
extern "C" __global__ void head_rows(const float *logits, unsigned vocab, float *denominators, float *likeliest) {
  const float *row = logits + (size_t)blockIdx.x * vocab;
  Sum sum = {-INFINITE, 0.0f};
  unsigned first = vocab;
  for (unsigned i = threadIdx.x; i < vocab; i += blockDim.x) {
    if (row[i] > sum.most) first = i;
    add(sum, row[i]);
  }
  __shared__ Sum sums[1024];
  __shared__ unsigned firsts[1024];
  sums[threadIdx.x] = sum;
  firsts[threadIdx.x] = first;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) {
      Sum a = sums[threadIdx.x], b = sums[threadIdx.x + half];
      unsigned of_a = firsts[threadIdx.x], of_b = firsts[threadIdx.x + half];
      firsts[threadIdx.x] = a.most == b.most ? min(of_a, of_b) : a.most > b.most ? of_a : of_b;
      sums[threadIdx.x] = merge(a, b);
    }
  }
  if (threadIdx.x == 0) {
    denominators[blockIdx.x] = sums[0].most + logf(sums[0].sum);
    likeliest[blockIdx.x] = (float)firsts[0];
  }
}

// Attention of new rows over the KV cache. Each block stores keys and values as [capacity, shared, width], with
// `shared` KV heads of `width` channels. `table` contains four values for each row: its first block, its number of
// blocks, its position, and its index in the last block. After the rows, `table` contains the end position of each
// block's tokens. `starts` contains the start addresses of the keys and values of each block.
//
// A thread block of 256 threads processes `together` heads of a row, which share their keys. `together` is a power of
// two up to 8, so that each head is processed by one or more warps. Eight threads process one key at a time, with C
// channels per thread, and keep a running softmax. The softmaxes are merged at the end. The width is a multiple of the
// number of channels per load. No load depends on a branch: out-of-range indices are replaced by valid ones, and the
// values loaded from them are ignored.
template <int C, typename T, typename Of, typename To>
__device__ void attend(const T *queries, const unsigned *table, const unsigned long long *starts, T *out, unsigned rows,
                       unsigned heads, unsigned together, unsigned shared, unsigned width, unsigned window, float scale,
                       float cap, Of of, To to) {
  constexpr int V = C * sizeof(T) < 16 ? C : 16 / sizeof(T), LOADS = C / V;
  struct alignas(V * sizeof(T)) Pack {
    T x[V];
  };
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 8, each = 8 / together;
  const unsigned row = blockIdx.x / (heads / together), head = blockIdx.x % (heads / together) * together + warp / each;
  const unsigned groups = 4 * each, group = warp % each * 4 + threadIdx.x % 32 / 8;
  const unsigned *ends = table + 4 * (size_t)rows;
  const unsigned first = table[4 * row], count = table[4 * row + 1], position = table[4 * row + 2];
  const size_t step = (size_t)shared * width, own = (size_t)(head / (heads / shared)) * width;
  unsigned at_load[LOADS];
  float query[C], sum_of[C];
  const Pack *of_query = (const Pack *)(queries + ((size_t)row * heads + head) * width);
#pragma unroll
  for (int j = 0; j < LOADS; j++) {
    const bool there = (j * 8 + lane) * V < width;
    at_load[j] = there ? j * 8 + lane : 0;
    const Pack pack = of_query[at_load[j]];
#pragma unroll
    for (int i = 0; i < V; i++) {
      query[j * V + i] = there ? of(pack.x[i]) * scale : 0.0f;
      sum_of[j * V + i] = 0.0f;
    }
  }
  float most = -INFINITE, sum = 0.0f;
  const unsigned from = position < window ? 0 : position + 1 - window;
  unsigned begin = 0;
  for (unsigned block = first; block < first + count; block++) {
    const unsigned end = min(ends[block], position + 1);
    const T *keys = (const T *)starts[2 * block] + own, *values = (const T *)starts[2 * block + 1] + own;
    // All threads of a warp run the same number of iterations, because the shuffles below need every thread.
    for (unsigned at = max(begin, from); at < end; at += groups) {
      const bool seen = at + group < end;
      const size_t key = (size_t)((seen ? at + group : end - 1) - begin) * step;
      const Pack *k = (const Pack *)(keys + key), *v = (const Pack *)(values + key);
      Pack of_key[LOADS], of_value[LOADS];
#pragma unroll
      for (int j = 0; j < LOADS; j++) {
        of_key[j] = k[at_load[j]];
        of_value[j] = v[at_load[j]];
      }
      float score = 0.0f;
#pragma unroll
      for (int c = 0; c < C; c++) score += query[c] * of(of_key[c / V].x[c % V]);
      for (unsigned apart = 4; apart > 0; apart /= 2) score += __shfl_xor_sync(~0u, score, apart);
      if (cap > 0.0f) score = tanhf(score / cap) * cap;
      // NaN never becomes the maximum, but makes the sum NaN.
      const float now = seen ? fmaxf(most, score) : most;
      const float old = most == -INFINITE ? 0.0f : expf(most - now);
      const float part = seen && score != -INFINITE ? expf(score - now) : 0.0f;
      sum = sum * old + part;
      most = now;
#pragma unroll
      for (int c = 0; c < C; c++) sum_of[c] = sum_of[c] * old + part * of(of_value[c / V].x[c % V]);
    }
    begin = ends[block];
  }
  __shared__ float mosts[8], sums[8], sums_of[8][8 * C];
  // Merge the softmaxes of a warp. A softmax of NaN scores has no maximum and keeps its sum.
  float all = fmaxf(most, __shfl_xor_sync(~0u, most, 8));
  all = fmaxf(all, __shfl_xor_sync(~0u, all, 16));
  auto share = [](float most, float sum, float all) {
    return most == -INFINITE ? (sum != 0.0f ? 1.0f : 0.0f) : expf(most - all);
  };
  const float part = share(most, sum, all);
  sum *= part;
  for (unsigned apart = 8; apart < 32; apart *= 2) sum += __shfl_xor_sync(~0u, sum, apart);
#pragma unroll
  for (int c = 0; c < C; c++) {
    float x = sum_of[c] * part;
    for (unsigned apart = 8; apart < 32; apart *= 2) x += __shfl_xor_sync(~0u, x, apart);
    if (threadIdx.x % 32 < 8) sums_of[warp][(c / V * 8 + lane) * V + c % V] = x;
  }
  if (threadIdx.x % 32 == 0) {
    mosts[warp] = all;
    sums[warp] = sum;
  }
  __syncthreads();
  out += ((size_t)row * heads + blockIdx.x % (heads / together) * together) * width;
  for (unsigned channel = threadIdx.x; channel < together * width; channel += blockDim.x) {
    const unsigned begin = channel / width * each;
    float greatest = -INFINITE, whole = 0.0f, x = 0.0f;
    for (unsigned w = begin; w < begin + each; w++) greatest = fmaxf(greatest, mosts[w]);
    for (unsigned w = begin; w < begin + each; w++) {
      const float part = share(mosts[w], sums[w], greatest);
      whole += sums[w] * part;
      x += sums_of[w][channel % width] * part;
    }
    out[channel] = to(x / whole);
  }
}

#define ATTEND(T, NAME, WIDTH)                                                                                         \
  extern "C" __global__ void attend_##NAME##_##WIDTH(                                                                  \
      const T *queries, const unsigned *table, const unsigned long long *starts, T *out, unsigned rows,                \
      unsigned heads, unsigned together, unsigned shared, unsigned width, unsigned window, float scale, float cap) {   \
    attend<WIDTH / 8>(                                                                                                 \
        queries, table, starts, out, rows, heads, together, shared, width, window, scale, cap,                         \
        [](T x) { return of_##NAME(x); }, [](float x) { return to_##NAME(x); });                                       \
  }

#define KERNELS(T, NAME)                                                                                               \
  ATTEND(T, NAME, 32)                                                                                                  \
  ATTEND(T, NAME, 64)                                                                                                  \
  ATTEND(T, NAME, 128)                                                                                                 \
  ATTEND(T, NAME, 256)                                                                                                 \
                                                                                                                       \
  /* Appends the keys and values [rows, c] of new rows to the last block of each row. One thread block per row. */    \
  extern "C" __global__ void keep_##NAME(const T *keys, const T *values, const unsigned *table,                        \
                                         const unsigned long long *starts, unsigned c) {                               \
    const unsigned *of = table + 4 * (size_t)blockIdx.x, block = of[0] + of[1] - 1;                                    \
    T *to_keys = (T *)starts[2 * block] + (size_t)of[3] * c, *to_values = (T *)starts[2 * block + 1] + (size_t)of[3] * c;\
    keys += (size_t)blockIdx.x * c;                                                                                    \
    values += (size_t)blockIdx.x * c;                                                                                  \
    for (unsigned i = threadIdx.x; i < c; i += blockDim.x) {                                                           \
      to_keys[i] = keys[i];                                                                                            \
      to_values[i] = values[i];                                                                                        \
    }                                                                                                                  \
  }                                                                                                                    \
                                                                                                                       \
  /* Softmax of scaled, capped and masked scores [rows, k]. The mask [q, k] repeats every q rows. A cap of 0 disables  \
     the soft cap. One warp per row. */                                                                                \
  extern "C" __global__ void weights_##NAME(const T *scores, const float *mask, T *out, unsigned rows, unsigned q,     \
                                            unsigned k, float scale, float cap) {                                      \
    unsigned row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;                         \
    if (row >= rows) return;                                                                                           \
    scores += (size_t)row * k;                                                                                         \
    out += (size_t)row * k;                                                                                            \
    mask += (size_t)(row % q) * k;                                                                                     \
    auto score = [&](unsigned i) {                                                                                     \
      float x = of_##NAME(scores[i]) * scale;                                                                          \
      return (cap > 0.0f ? tanhf(x / cap) * cap : x) + mask[i];                                                        \
    };                                                                                                                 \
    Sum sum = {-INFINITE, 0.0f};                                                                                       \
    for (unsigned i = lane; i < k; i += 32) add(sum, score(i));                                                        \
    for (unsigned apart = 16; apart > 0; apart /= 2) {                                                                 \
      Sum other = {__shfl_xor_sync(~0u, sum.most, apart), __shfl_xor_sync(~0u, sum.sum, apart)};                       \
      sum = merge(sum, other);                                                                                         \
    }                                                                                                                  \
    for (unsigned i = lane; i < k; i += 32) out[i] = to_##NAME(expf(score(i) - sum.most) / sum.sum);                   \
  }                                                                                                                    \
                                                                                                                       \
  /* Computes x / sqrt(mean(x^2) + eps) * weight for rows of c values. One thread block per row. */                    \
  extern "C" __global__ void rms_norm_##NAME(const T *x, const float *weight, T *out, unsigned c, float eps) {         \
    x += (size_t)blockIdx.x * c;                                                                                       \
    out += (size_t)blockIdx.x * c;                                                                                     \
    float sum = 0.0f;                                                                                                  \
    for (unsigned i = threadIdx.x; i < c; i += blockDim.x) sum += of_##NAME(x[i]) * of_##NAME(x[i]);                   \
    for (unsigned apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(~0u, sum, apart);                          \
    __shared__ float sums[32];                                                                                         \
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;                                                           \
    __syncthreads();                                                                                                   \
    sum = 0.0f;                                                                                                        \
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++) sum += sums[warp];                                         \
    float root = sqrtf(sum / c + eps);                                                                                 \
    for (unsigned i = threadIdx.x; i < c; i += blockDim.x) out[i] = to_##NAME(of_##NAME(x[i]) / root * weight[i]);     \
  }                                                                                                                    \
                                                                                                                       \
  /* Applies the rotary embedding to x [rows, heads, 2 * half], with cos and sin [rows, half]. */                      \
  extern "C" __global__ void rotate_##NAME(const T *x, const float *cos, const float *sin, T *out, unsigned count,     \
                                           unsigned heads, unsigned half) {                                            \
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;                                                                \
    if (i >= count) return;                                                                                            \
    unsigned head = i / half, at = i % half;                                                                           \
    size_t turn = (size_t)(head / heads) * half + at, first = (size_t)head * 2 * half + at;                            \
    float a = of_##NAME(x[first]), b = of_##NAME(x[first + half]);                                                     \
    out[first] = to_##NAME(a * cos[turn] - b * sin[turn]);                                                             \
    out[first + half] = to_##NAME(b * cos[turn] + a * sin[turn]);                                                      \
  }                                                                                                                    \
                                                                                                                       \
  /* Computes silu(gate) * up. One thread per element. */                                                              \
  extern "C" __global__ void silu_mul_##NAME(const T *gate, const T *up, T *out, unsigned long long count) {           \
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;                                  \
    if (i >= count) return;                                                                                            \
    float x = of_##NAME(gate[i]);                                                                                      \
    out[i] = to_##NAME(x / (1.0f + expf(-x)) * of_##NAME(up[i]));                                                      \
  }

KERNELS(float, f32)
KERNELS(half_t, bf16)
KERNELS(half_t, f16)
