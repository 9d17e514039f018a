// cluster softmax: each CTA holds a slice of the row, partial (m, s) exchanged through DSMEM
__device__ __forceinline__ unsigned sptr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ __forceinline__ float remote(const float* p, unsigned rank) {
  unsigned a; float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(sptr(p)), "r"(rank));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(a) : "memory");
  return v;
}
#define CLUSTER_SYNC asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory")
extern "C" __global__ void __cluster_dims__(4, 1, 1) softmax_cluster(const float* x, float* y, int M, int N) {
  __shared__ float part[2], wm[4], ws[4];
  extern __shared__ float slice[];
  unsigned rank, size;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  int row = blockIdx.x / size, per = N / size, t = threadIdx.x;
  float m = -1e30f, s = 0.f;
  for (int i = t; i < per; i += blockDim.x) { float v = x[(size_t)row * N + rank * per + i]; slice[i] = v; m = fmaxf(m, v); }
  for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
  if ((t & 31) == 0) wm[t >> 5] = m;
  __syncthreads();
  m = fmaxf(fmaxf(wm[0], wm[1]), fmaxf(wm[2], wm[3]));
  for (int i = t; i < per; i += blockDim.x) s += __expf(slice[i] - m);
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if ((t & 31) == 0) ws[t >> 5] = s;
  __syncthreads();
  if (t == 0) { part[0] = m; part[1] = ws[0] + ws[1] + ws[2] + ws[3]; }
  SYNC1;
  float gm = -1e30f, gs = 0.f;
  for (unsigned r = 0; r < size; ++r) gm = fmaxf(gm, remote(&part[0], r));
  for (unsigned r = 0; r < size; ++r) gs += remote(&part[1], r) * __expf(remote(&part[0], r) - gm);
  for (int i = t; i < per; i += blockDim.x) y[(size_t)row * N + rank * per + i] = __expf(slice[i] - gm) / gs;
  SYNC2;
}
