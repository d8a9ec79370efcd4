// Eight independent chains of fused multiply-adds per work item: enough for the device to hide the latency of one.
// ROUNDS is given at compile time; every work item does 8 * ROUNDS operations of two floating-point steps each.
// The host computes the same in `expected_sum` and compares.
__kernel void fused_multiply_add(__global float *restrict sums, const float factor, const float addend) {
    const size_t i = get_global_id(0);
    const float seed = (float)(i % 1024) / 1024.0f;
    float a = seed, b = seed + 1.0f, c = seed + 2.0f, d = seed + 3.0f;
    float e = seed + 4.0f, f = seed + 5.0f, g = seed + 6.0f, h = seed + 7.0f;
    for (int round = 0; round < ROUNDS; ++round) {
        a = fma(a, factor, addend);
        b = fma(b, factor, addend);
        c = fma(c, factor, addend);
        d = fma(d, factor, addend);
        e = fma(e, factor, addend);
        f = fma(f, factor, addend);
        g = fma(g, factor, addend);
        h = fma(h, factor, addend);
    }
    sums[i] = ((a + b) + (c + d)) + ((e + f) + (g + h));
}
