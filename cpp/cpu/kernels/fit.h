// Steps and bases of blocks, by weighted least squares over what rounding leaves: of a few ranges that a group of
// inputs may be given each is tried, its step and base are refitted to the codes that came of it, and the best is kept.
// Then half precision and 6 bits take their part, and the block's outer numbers are refitted once more.
#pragma once

#include "cpu/kernels/fit_table.h"
#include "cpu/kernels/rows.h"
#include "cpu/kernels/simd.h"

namespace agentkv::cpu {
namespace {

// The code that the extreme number of a group gets, as a part of the outermost: below 1 there is room, above it the
// number is clipped. More codes need fewer tries.
template <int kBits>
constexpr float kReaches[] = {1.0f};
template <>
constexpr float kReaches<4>[] = {1.0f, 0.84f, 0.88f, 0.92f, 0.96f, 1.04f, 1.09f, 1.14f, 1.2f};
template <>
constexpr float kReaches<5>[] = {1.0f, 0.94f, 0.97f, 1.03f, 1.07f};
template <>
constexpr float kReaches<6>[] = {1.0f, 0.97f, 1.03f};

// What is left out of a group's range at its low and its high end, in parts of a step.
template <int kBits>
constexpr float kMargins[] = {0.0f, 0.5f};
template <>
constexpr float kMargins<4>[] = {0.0f, 0.35f, 0.8f};

constexpr float kFlat = 1e-6f;  // of what a spread may be at most; less of it has no slope
constexpr float kInfinity = __builtin_inff();

template <class Bytes>
AGENTKV_INLINE void store_bytes(void* at, Vec integers) {
  store(at, __builtin_convertvector(__builtin_convertvector(integers, IVec), Bytes));
}
AGENTKV_INLINE Vec quotient(Vec a, Vec b) { return select(b == Vec{}, Vec{}, a / b); }
AGENTKV_INLINE Vec magnitude(Vec x) { return (Vec)((UVec)x & 0x7fffffffu); }

// The nearest integer of [low, high], to even; low of a NaN.
AGENTKV_INLINE Vec nearest(Vec x, float low, float high) {
  const Vec half_way = splat(0x1.8p23f);  // beyond it floats are integers
  return (smaller(larger(x, splat(low)), splat(high)) + half_way) - half_way;
}

// As binary16, saturating.
AGENTKV_INLINE Vec halved(Vec x, std::uint16_t* bits) {
  alignas(64) std::byte kept[2 * kWidth];
  Fp16Row::store_part(x, kept, 0);
  __builtin_memcpy(bits, kept, sizeof(kept));
  return Fp16Row::load(kept, 0);
}

// What a kernel's lanes compute together, of a part of a FitBlock's rows.
template <class F>
struct Lanes {
  static constexpr int kGroups = F::kInputs / F::kGroup;
  static constexpr bool kNested = kGroups > 1;
  // Codes here are plus or minus so many, and F's less kOffset. The least of 8 bits would be -128, with no counterpart.
  static constexpr float kLow = F::kBits == 8 ? -127.0f : static_cast<float>(-F::kOffset);
  static constexpr float kHigh = static_cast<float>((1 << F::kBits) - 1 - F::kOffset);
  static constexpr float kBounds[] = {kLow, kHigh};

  // A step and a minimum: of each group, or of the block.
  struct Pair {
    Vec step, minimum;
  };
  struct Grid {
    Pair outer;
    Pair inner[kGroups];
    std::uint16_t bits[2][kWidth];  // of `outer`

    AGENTKV_INLINE Pair of(int g) const {
      return {outer.step * inner[g].step, F::kHasMinimum ? outer.minimum * inner[g].minimum : Vec{}};
    }
  };

  const float* numbers;  // [kInputs][kFitRows]
  const float* importance;

  AGENTKV_INLINE Vec number(int k) const { return load(numbers + k * kFitRows); }

  // One step for a group, of either sign: a code of 0 is 0.
  AGENTKV_INLINE Pair symmetric_fit(int first) const {
    Vec extreme{}, best{}, most{};
    for (int k = first; k < first + F::kGroup; ++k) {
      const Vec x = number(k);
      extreme = select(magnitude(x) > magnitude(extreme), x, extreme);
    }
    for (const float bound : kBounds) {
      for (const float reach : kReaches<F::kBits>) {
        const Vec inverse = quotient(splat(1.0f), extreme / splat(bound * reach));
        Vec along{}, squares{};
        for (int k = first; k < first + F::kGroup; ++k) {
          const Vec x = number(k), code = nearest(x * inverse, kLow, kHigh), coded = code * splat(importance[k]);
          along += coded * x;
          squares += coded * code;
        }
        const Vec gained = along * along / squares;
        const IVec better = gained > most;
        best = select(better, along / squares, best);
        most = select(better, gained, most);
      }
    }
    return {best, Vec{}};
  }

  // What a group's step and minimum follow from, besides its codes.
  struct Sums {
    Vec ones, numbers;  // of importance, and of it times the numbers
  };

  AGENTKV_INLINE Pair affine_fit(int first) const {
    Vec low = number(first), high = low;
    Sums sums{};
    for (int k = first; k < first + F::kGroup; ++k) {
      const Vec x = number(k);
      low = smaller(low, x);
      high = larger(high, x);
      sums.ones += splat(importance[k]);
      sums.numbers += x * splat(importance[k]);
    }
    if (kNested) low = smaller(low, Vec{});  // minima are not negative
    Pair best{(high - low) / splat(kHigh), -low};
    Vec least = splat(kInfinity);
    for (const float left : kMargins<F::kBits>) {
      for (const float right : kMargins<F::kBits>) {
        const Vec step = (high - low) / splat(kHigh + left + right);
        const Vec inverse = quotient(splat(1.0f), step), base = low + step * splat(left);
        Vec codes{}, squares{}, along{};
        for (int k = first; k < first + F::kGroup; ++k) {
          const Vec x = number(k), code = nearest((x - base) * inverse, kLow, kHigh);
          const Vec coded = code * splat(importance[k]);
          codes += coded;
          squares += coded * code;
          along += coded * x;
        }
        refit(sums, codes, squares, along, best, least);
      }
    }
    return best;
  }

  // The step and the minimum of the least error for given codes, where that is below `least`.
  static AGENTKV_INLINE void refit(const Sums& sums, Vec codes, Vec squares, Vec along, Pair& best, Vec& least) {
    const Vec spread = sums.ones * squares - codes * codes;
    const IVec flat = spread <= sums.ones * squares * splat(kFlat);
    Vec step = select(flat, Vec{}, (sums.ones * along - codes * sums.numbers) / spread);
    Vec base = quotient(sums.numbers - step * codes, sums.ones);
    if (kNested) {
      step = select(base > Vec{}, quotient(along, squares), step);
      base = smaller(base, Vec{});
    }
    const Vec lost = step * (step * squares - splat(2.0f) * along + splat(2.0f) * base * codes) +
                     base * (base * sums.ones - splat(2.0f) * sums.numbers);
    const IVec better = lost < least;
    best = {select(better, step, best.step), select(better, -base, best.minimum)};
    least = select(better, lost, least);
  }

  // The block's numbers, and its groups' as integers times those.
  static AGENTKV_INLINE Grid nested(const Pair (&groups)[kGroups]) {
    Grid grid{};
    Pair most = groups[0];
    for (const Pair& each : groups) {
      most.step = F::kHasMinimum ? larger(most.step, each.step)
                                 : select(magnitude(each.step) > magnitude(most.step), each.step, most.step);
      most.minimum = larger(most.minimum, each.minimum);
    }
    constexpr float low = F::kHasMinimum ? 0.0f : -128.0f, high = F::kHasMinimum ? 63.0f : 127.0f;
    put_outer(grid, {most.step / splat(F::kHasMinimum ? high : low), most.minimum / splat(63.0f)});
    for (int g = 0; g < kGroups; ++g) {
      grid.inner[g] = {nearest(quotient(groups[g].step, grid.outer.step), low, high),
                       nearest(quotient(groups[g].minimum, grid.outer.minimum), 0.0f, 63.0f)};
    }
    return grid;
  }

  static AGENTKV_INLINE void put_outer(Grid& grid, const Pair& outer) {
    grid.outer = {halved(outer.step, grid.bits[0]), halved(outer.minimum, grid.bits[1])};
  }

  AGENTKV_INLINE Grid fitted() const {
    Pair groups[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      groups[g] = F::kHasMinimum ? affine_fit(g * F::kGroup) : symmetric_fit(g * F::kGroup);
    }
    if constexpr (kNested) return nested(groups);
    Grid grid{};
    put_outer(grid, groups[0]);
    grid.inner[0] = {splat(1.0f), splat(1.0f)};
    return grid;
  }

  // The codes under a grid; returns what the errors cost.
  AGENTKV_INLINE Vec encode(const Grid& grid, Vec (&codes)[F::kInputs]) const {
    Vec lost{};
    for (int g = 0; g < kGroups; ++g) {
      const Pair pair = grid.of(g);
      const Vec inverse = quotient(splat(1.0f), pair.step);
      for (int k = g * F::kGroup; k < (g + 1) * F::kGroup; ++k) {
        const Vec x = number(k);
        codes[k] = nearest((x + pair.minimum) * inverse, kLow, kHigh);
        const Vec error = codes[k] * pair.step - pair.minimum - x;
        lost += error * error * splat(importance[k]);
      }
    }
    return lost;
  }

  // The grid whose outer numbers fit best what the codes make of the inner ones: x is about one * along - two * across.
  AGENTKV_INLINE Grid refitted(const Grid& grid, const Vec (&codes)[F::kInputs]) const {
    Vec aa{}, ab{}, bb{}, ax{}, bx{};
    for (int g = 0; g < kGroups; ++g) {
      const Vec across = -grid.inner[g].minimum;
      for (int k = g * F::kGroup; k < (g + 1) * F::kGroup; ++k) {
        const Vec x = number(k), counts = splat(importance[k]);
        const Vec along = codes[k] * grid.inner[g].step, weighted = along * counts;
        aa += weighted * along;
        ax += weighted * x;
        if constexpr (F::kHasMinimum) {
          ab += weighted * across;
          bb += counts * across * across;
          bx += counts * across * x;
        }
      }
    }
    Pair outer{quotient(ax, aa), Vec{}};
    if constexpr (F::kHasMinimum) {
      const Vec spread = aa * bb - ab * ab;
      const IVec solved = spread > aa * bb * splat(kFlat);
      const Vec alone = select(aa > Vec{}, Vec{}, quotient(bx, bb));  // where the codes are all 0
      outer = {select(solved, (bb * ax - ab * bx) / spread, outer.step),
               select(solved, (aa * bx - ab * ax) / spread, alone)};
    }
    Grid again = grid;
    put_outer(again, outer);
    return again;
  }
};

template <class F>
AGENTKV_INLINE void fit_lanes(FitBlock& block, const float* importance, int lane) {
  using L = Lanes<F>;
  const L lanes{&block.numbers[0][lane], importance};
  Vec codes[F::kInputs], others[F::kInputs];
  typename L::Grid grid = lanes.fitted();
  const Vec lost = lanes.encode(grid, codes);
  const typename L::Grid again = lanes.refitted(grid, codes);
  const IVec better = lanes.encode(again, others) < lost;
  for (int i = 0; i < kWidth; ++i) {
    block.scale[lane + i] = better[i] ? again.bits[0][i] : grid.bits[0][i];
    block.minimum[lane + i] = better[i] ? again.bits[1][i] : grid.bits[1][i];
  }
  grid.outer = {select(better, again.outer.step, grid.outer.step),
                select(better, again.outer.minimum, grid.outer.minimum)};
  Vec errors{}, squares{};
  for (int g = 0; g < L::kGroups; ++g) {
    const typename L::Pair pair = grid.of(g);
    store_bytes<ByteVec>(&block.scales[g][lane], grid.inner[g].step);
    store_bytes<UByteVec>(&block.minima[g][lane], grid.inner[g].minimum);
    for (int k = g * F::kGroup; k < (g + 1) * F::kGroup; ++k) {
      const Vec x = lanes.number(k), code = select(better, others[k], codes[k]);
      store_bytes<UByteVec>(&block.codes[k][lane], code + splat(F::kOffset));
      const Vec error = code * pair.step - pair.minimum - x;
      errors += error * error;
      squares += x * x;
    }
  }
  store(&block.lost[lane], errors);
  store(&block.whole[lane], squares);
}

template <class F>
void fit_block(FitBlock& block, const float* importance) {
  for (int lane = 0; lane < kFitRows; lane += kWidth) fit_lanes<F>(block, importance, lane);
}

}  // namespace
}  // namespace agentkv::cpu
