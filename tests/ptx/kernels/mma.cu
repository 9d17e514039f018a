#include <cuda_fp16.h>
__device__ unsigned smem(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
// one warp, C[64,64] = A[64,64] B[64,64], row-major fp16, 128-byte rows, xor swizzle
__device__ int sw(int r, int c) { return r * 64 + (((c >> 3) ^ (r & 7)) << 3) + (c & 7); }
extern "C" __global__ void mma_gemm(const half* A, const half* B, float* C) {
  __shared__ __align__(128) half As[64 * 64], Bs[64 * 64];
  int t = threadIdx.x;
  for (int i = t; i < 512; i += 32) {
    int r = i >> 3, c = (i & 7) * 8;
    *(uint4*)&As[sw(r, c)] = *(const uint4*)&A[r * 64 + c];
    *(uint4*)&Bs[sw(r, c)] = *(const uint4*)&B[r * 64 + c];
  }
  __syncwarp();
  int g = t >> 2, q = t & 3;
  #pragma unroll 1
  for (int m0 = 0; m0 < 64; m0 += 16) {
    float acc[8][4] = {};
    #pragma unroll
    for (int k0 = 0; k0 < 64; k0 += 16) {
      unsigned a[4];
      unsigned pa = smem(&As[sw(m0 + (t & 15), k0 + (t >> 4) * 8)]);
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(pa) : "memory");
      #pragma unroll
      for (int n0 = 0; n0 < 64; n0 += 16) {
        unsigned b[4];
        unsigned pb = smem(&Bs[sw(k0 + (t & 15), n0 + (t >> 4) * 8)]);
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" TRANS ".shared.b16 {%0,%1,%2,%3}, [%4];"
          : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3]) : "r"(pb) : "memory");
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
          float* d = acc[n0 / 8 + h];
          asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[FRAG1]), "r"(a[FRAG2]), "r"(a[3]), "r"(b[2 * h]), "r"(b[2 * h + 1]));
        }
      }
    }
    #pragma unroll
    for (int n = 0; n < 8; ++n) {
      *(float2*)&C[(m0 + g) * 64 + n * 8 + q * 2] = make_float2(acc[n][0], acc[n][1]);
      *(float2*)&C[(m0 + g + 8) * 64 + n * 8 + q * 2] = make_float2(acc[n][2], acc[n][3]);
    }
  }
}
