extern "C" __global__ void partial_shuffle(float* x) {
  float v = x[threadIdx.x];
  if (threadIdx.x < 16) v += __shfl_xor_sync(0xffffffffu, v, 8);
  x[threadIdx.x] = v;
}
extern "C" __global__ void two_barriers(float* x) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  if (threadIdx.x < 32) { __syncthreads(); s[threadIdx.x] += 1.f; } else { __syncthreads(); s[threadIdx.x] += 2.f; }
  x[threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void stuck(float* x) {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;"); else asm volatile("bar.sync 2, 64;");
  x[0] = 1.f;
}
extern "C" __global__ void hello(float x) { if (threadIdx.x % 16 == 3) printf("thread %d says %.2f and %lld%%\n", threadIdx.x, x, 5000000000ll * threadIdx.x); }
extern "C" __global__ void uninit(float* x) { __shared__ float s[64]; if (threadIdx.x < 63) s[threadIdx.x] = 1.f; __syncthreads(); x[threadIdx.x] = s[threadIdx.x]; }
extern "C" __global__ void misaligned(char* x) { *(float*)(x + threadIdx.x) = 1.f; }
extern "C" __global__ void endless(volatile int* x) { while (x[0] == 0) ; }
extern "C" __global__ void handshake(volatile int* x) { if (threadIdx.x == 0) { while (x[0] == 0) ; x[1] = 7; } if (threadIdx.x == 1) x[0] = 1; }
extern "C" __global__ void early_exit(float* x, int n) {
  __shared__ float s[64];
  if (threadIdx.x >= n) return;
  s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = s[n - 1 - threadIdx.x];
}
extern "C" __global__ void warp_tail(int* x) {      // correct intra-warp exchange through shared memory
  __shared__ int s[32];
  int t = threadIdx.x;
  s[t] = x[t]; __syncwarp();
  int v = s[31 - t]; __syncwarp();
  s[t] = v * 2; __syncwarp();
  x[t] = s[t ^ 1] + __popc(__ballot_sync(~0u, v & 1)) + __reduce_add_sync(~0u, v);
}
extern "C" __global__ void arith(const int* a, const int* b, int* o) {
  int t = threadIdx.x; int x = a[t], y = b[t]; unsigned ux = x, uy = y;
  o[t * 16 + 0] = x / y; o[t * 16 + 1] = x % y; o[t * 16 + 2] = ux / uy; o[t * 16 + 3] = ux % uy;
  o[t * 16 + 4] = __mulhi(x, y); o[t * 16 + 5] = __umulhi(ux, uy); o[t * 16 + 6] = __clz(x); o[t * 16 + 7] = __popc(x);
  o[t * 16 + 8] = __byte_perm(x, y, 0x5140); o[t * 16 + 9] = __funnelshift_l(x, y, y); o[t * 16 + 10] = __ffs(x);
  o[t * 16 + 11] = x >> (y & 31); o[t * 16 + 12] = ux << (y & 31); o[t * 16 + 13] = (int)((long long)x * y >> 13); o[t * 16 + 14] = abs(x) ^ ~y;
  o[t * 16 + 15] = (int)__brev(ux);
}
extern "C" __global__ void convert(const float* a, int* o) {
  int t = threadIdx.x; float x = a[t];
  o[t * 8] = (int)x; o[t * 8 + 1] = __float2int_rn(x); o[t * 8 + 2] = (unsigned)x; o[t * 8 + 3] = (signed char)(int)x;
  o[t * 8 + 4] = __float_as_int(floorf(x)); o[t * 8 + 5] = __float_as_int(fmaf(x, x, -1.f)); o[t * 8 + 6] = x < 0.5f; o[t * 8 + 7] = isnan(x);
}

// a register that nothing has been written to, as that of a sum that was never set to zero
extern "C" __global__ void unwritten(const float* x, float* sums, int* numbers) {
  const int i = threadIdx.x;
  asm volatile("{ .reg .f32 r; add.f32 %0, r, %1; }" : "=f"(sums[i]) : "f"(x[i]));
  asm volatile("{ .reg .u32 r; mov.u32 %0, r; }" : "=r"(numbers[i]));
}
