#include <cuda_fp16.h>
// D[16,8] = A[16,32] (2:4 sparse: values [16,16], meta registers per lane) * B[32,8]
extern "C" __global__ void mma_sp(const unsigned* a, const unsigned* b, const unsigned* meta, float* d) {
  int t = threadIdx.x;
  float c[4] = {0.f, 0.f, 0.f, 0.f};
  asm volatile("mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9,%10,%11}, {%0,%1,%2,%3}, %12, " SEL ";"
    : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
    : "r"(a[t * 4]), "r"(a[t * 4 + 1]), "r"(a[t * 4 + 2]), "r"(a[t * 4 + 3]), "r"(b[t * 4]), "r"(b[t * 4 + 1]), "r"(b[t * 4 + 2]), "r"(b[t * 4 + 3]), "r"(meta[t]));
  int g = t >> 2, q = t & 3;
  d[g * 8 + q * 2] = c[0]; d[g * 8 + q * 2 + 1] = c[1]; d[(g + 8) * 8 + q * 2] = c[2]; d[(g + 8) * 8 + q * 2 + 1] = c[3];
}
