#include "engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "core/errors.h"
#include "core/message.h"
#include "engine/softmax.h"

namespace agentkv {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
// A nucleus is looked for among this many leading tokens before every token is considered.
constexpr std::size_t kNucleusGuess = 256;
// Below this the reciprocal overflows, and no second token has any mass left.
constexpr float kGreedyBelow = 1e-6f;

void require(bool good, const char* name, double value, const char* bound) {
  if (!good) throw InvalidSampling(error_text(name, " is ", value, ", but must be ", bound));
}

RowSummary checked_summary(std::span<const float> row) {
  const RowSummary summary = summarise(row);
  if (!std::isfinite(summary.log_sum_exp)) {
    throw ForwardFailed(
        "the model returned logits that are no distribution (NaN, +inf, or all -inf): its weights, or the cells that "
        "it "
        "read, are damaged");
  }
  return summary;
}

}  // namespace

void Sampling::validate(Token vocab_size) const {
  require(temperature >= 0 && std::isfinite(temperature), "temperature", temperature, "finite and >= 0");
  require(top_k >= 0, "top_k", top_k, ">= 0 (0 turns it off)");
  require(top_p > 0 && top_p <= 1, "top_p", top_p, "in (0, 1]");
  require(min_p >= 0 && min_p <= 1, "min_p", min_p, "in [0, 1]");
  require(repetition_penalty > 0 && std::isfinite(repetition_penalty), "repetition_penalty", repetition_penalty,
          "finite and > 0");
  for (const auto& [name, penalty] :
       {std::pair{"presence_penalty", presence_penalty}, std::pair{"frequency_penalty", frequency_penalty}}) {
    require(penalty >= -2 && penalty <= 2, name, penalty, "in [-2, 2]");
  }
  for (const auto& [token, bias] : logit_bias) {
    if (token < 0 || token >= vocab_size) {
      throw InvalidSampling(error_text("logit_bias has token id ", token,
                                       ", which is not in the vocabulary: ids go from 0 to ", vocab_size - 1));
    }
    require(bias >= -100 && bias <= 100, "a bias of logit_bias", bias, "in [-100, 100]");
  }
}

Sampler::Choice Sampler::sample(std::span<const float> row, const Sampling& sampling, const Past& past,
                                const RandomKey& key, TokenMask mask) {
  const RowSummary raw = checked_summary(row);
  auto scores = adjusted(row, sampling, past);
  const bool greedy = sampling.temperature < kGreedyBelow;
  // The model's own choice is the highest of whatever it is among.
  const bool own = greedy && scores.data() == row.data() && !mask.empty() && allows(mask, raw.argmax);
  if (!mask.empty() && !own) scores = allowed(scores, mask);
  const RowSummary summary = scores.data() == row.data() ? raw : summarise(scores);
  if (summary.max == kLowest) throw ForwardFailed("the constraint allows no token here that the model can say");
  Token token = greedy ? summary.argmax : draw(scores, summary.max, sampling, uniform(key));
  if (scores.data() == allowed_scores_.data()) token = allowed_[static_cast<std::size_t>(token)];
  return {token, static_cast<float>(static_cast<double>(row[static_cast<std::size_t>(token)]) - raw.log_sum_exp)};
}

// What is allowed is drawn from by itself, in the order of its ids, which every filter and the draw keep to: terms of
// forbidden tokens would be denormal numbers, which are slow.
std::span<const float> Sampler::allowed(std::span<const float> scores, TokenMask mask) {
  list_allowed(mask, allowed_);
  if (allowed_.empty()) throw ForwardFailed("the constraint allows no token here");
  allowed_scores_.clear();
  for (const Token token : allowed_) allowed_scores_.push_back(scores[static_cast<std::size_t>(token)]);
  return allowed_scores_;
}

// The row with its penalties and biases; itself where there are none.
std::span<const float> Sampler::adjusted(std::span<const float> row, const Sampling& s, const Past& past) {
  const bool counted = s.presence_penalty != 0 || s.frequency_penalty != 0;
  if (s.repetition_penalty == 1 && !counted && s.logit_bias.empty()) return row;
  scores_.assign(row.begin(), row.end());
  if (s.repetition_penalty != 1) {
    for (const Token token : past.log) {  // written from the row, so a repeated token is penalised once
      const float x = row[static_cast<std::size_t>(token)];
      scores_[static_cast<std::size_t>(token)] = x < 0 ? x * s.repetition_penalty : x / s.repetition_penalty;
    }
  }
  if (counted) subtract_counted(s, past);
  for (const auto& [token, bias] : s.logit_bias) scores_[static_cast<std::size_t>(token)] += bias;
  return scores_;
}

void Sampler::subtract_counted(const Sampling& s, const Past& past) {
  counts_.resize(scores_.size());
  const auto of_each = [&past](const auto& visit) {
    for (const Token token : past.before) visit(static_cast<std::size_t>(token));
    for (const Token token : past.made) visit(static_cast<std::size_t>(token));
  };
  of_each([this](std::size_t i) { ++counts_[i]; });
  of_each([this, &s](std::size_t i) {
    const std::int32_t count = std::exchange(counts_[i], 0);
    if (count > 0) scores_[i] -= s.presence_penalty + s.frequency_penalty * static_cast<float>(count);
  });
}

// Every filter keeps a prefix of the tokens in descending order of score, so together they are one floor.
Token Sampler::draw(std::span<const float> scores, float max, const Sampling& s, double u) {
  float floor = kLowest;
  candidates_.clear();
  if (s.top_k > 0 && static_cast<std::size_t>(s.top_k) < scores.size()) {
    floor = kth_largest(scores, static_cast<std::size_t>(s.top_k));
    gather(scores, floor);
    if (s.top_p < 1) floor = nucleus_of_candidates(max, s, s.top_p * candidate_mass(max, s, floor));
  } else if (s.top_p < 1) {
    floor = nucleus(scores, max, s);
  }
  if (s.min_p > 0) floor = std::max(floor, std::min(max, max + s.temperature * std::log(s.min_p)));
  return candidates_.empty() ? draw_any(scores, max, s, floor, u) : draw_candidate(max, s, floor, u);
}

// The k-th largest of the group maxima bounds the k-th largest element from below, so few elements need a look.
float Sampler::kth_largest(std::span<const float> scores, std::size_t k) {
  maxima_.resize(maxima_groups(scores.size()));
  group_maxima(scores, maxima_);
  const auto descending = std::greater<>();
  if (k > maxima_.size()) {
    order_.assign(scores.begin(), scores.end());
  } else {
    order_ = maxima_;
    std::nth_element(order_.begin(), order_.begin() + (k - 1), order_.end(), descending);
    gather(scores, order_[k - 1]);
    order_.clear();
    for (const Candidate& c : candidates_) order_.push_back(c.score);
  }
  std::nth_element(order_.begin(), order_.begin() + (k - 1), order_.end(), descending);
  return order_[k - 1];
}

// Fills candidates_ with the tokens of score >= floor, in id order. Needs maxima_.
void Sampler::gather(std::span<const float> scores, float floor) {
  candidates_.clear();
  for (std::size_t g = 0; g < maxima_.size(); ++g) {
    if (!(maxima_[g] >= floor)) continue;
    const std::size_t end = std::min(scores.size(), (g + 1) * kMaximaGroup);
    for (std::size_t i = g * kMaximaGroup; i < end; ++i) {
      if (scores[i] >= floor) candidates_.push_back({scores[i], static_cast<Token>(i)});
    }
  }
}

double Sampler::candidate_mass(float max, const Sampling& s, float floor) const {
  double mass = 0;
  for (const Candidate& c : candidates_) {
    if (c.score >= floor) mass += std::exp((static_cast<double>(c.score) - max) / s.temperature);
  }
  return mass;
}

// The score at which the candidates' mass, highest first, reaches `target`.
float Sampler::nucleus_of_candidates(float max, const Sampling& s, double target) {
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  });
  double mass = 0;
  for (const Candidate& c : candidates_) {
    mass += std::exp((static_cast<double>(c.score) - max) / s.temperature);
    if (mass >= target) return c.score;
  }
  return candidates_.back().score;
}

float Sampler::nucleus(std::span<const float> scores, float max, const Sampling& s) {
  masses_.resize(softmax_blocks(scores.size()));
  block_masses(scores, max, 1.0f / s.temperature, kLowest, masses_);
  double total = 0;
  for (const double mass : masses_) total += mass;
  const double target = s.top_p * total;

  const float guess = kth_largest(scores, std::min(kNucleusGuess, scores.size()));
  gather(scores, guess);
  if (candidate_mass(max, s, guess) >= target) return nucleus_of_candidates(max, s, target);
  candidates_.clear();
  return nucleus_of_all(scores, max, s, target);
}

// A flat distribution: find the octave sixteenth in which the mass is reached, then order only its tokens.
float Sampler::nucleus_of_all(std::span<const float> scores, float max, const Sampling& s, double target) {
  constexpr int kShift = 19;  // sign, exponent and four bits of mantissa: monotone for terms in [0, 1]
  const auto bucket_of = [](float term) { return std::bit_cast<std::uint32_t>(term) >> kShift; };
  terms_.resize(scores.size());
  softmax_terms(scores, max, 1.0f / s.temperature, kLowest, terms_);
  histogram_.assign(bucket_of(1.0f) + 2, 0.0);  // one more, for a term that rounding took above 1
  for (const float term : terms_) histogram_[bucket_of(term)] += static_cast<double>(term);

  double above = 0;
  std::size_t bucket = histogram_.size() - 1;
  while (bucket > 0 && above + histogram_[bucket] < target) above += histogram_[bucket--];
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (bucket_of(terms_[i]) == bucket) candidates_.push_back({scores[i], static_cast<Token>(i)});
  }
  const float floor = nucleus_of_candidates(max, s, target - above);
  candidates_.clear();
  return floor;
}

Token Sampler::draw_candidate(float max, const Sampling& s, float floor, double u) const {
  const double target = u * candidate_mass(max, s, floor);
  double mass = 0;
  Token last = candidates_.front().token;
  for (const Candidate& c : candidates_) {
    if (!(c.score >= floor)) continue;
    const double term = std::exp((static_cast<double>(c.score) - max) / s.temperature);
    if (term == 0) continue;
    last = c.token;
    mass += term;
    if (mass > target) break;
  }
  return last;
}

Token Sampler::draw_any(std::span<const float> scores, float max, const Sampling& s, float floor, double u) {
  const float inv_temperature = 1.0f / s.temperature;
  masses_.resize(softmax_blocks(scores.size()));
  block_masses(scores, max, inv_temperature, floor, masses_);
  double total = 0;
  for (const double mass : masses_) total += mass;

  double target = u * total;
  std::size_t block = 0;
  while (block + 1 < masses_.size() && target >= masses_[block]) target -= masses_[block++];
  while (masses_[block] == 0) --block;  // rounding carried the target past the last block that has mass

  const std::size_t begin = block * kSoftmaxBlock;
  const auto part = scores.subspan(begin, std::min(kSoftmaxBlock, scores.size() - begin));
  terms_.resize(std::max(terms_.size(), part.size()));
  softmax_terms(part, max, inv_temperature, floor, terms_);
  double mass = 0;
  std::size_t last = 0;
  for (std::size_t i = 0; i < part.size(); ++i) {
    if (terms_[i] == 0) continue;
    last = i;
    mass += static_cast<double>(terms_[i]);
    if (mass > target) break;
  }
  return static_cast<Token>(begin + last);
}

std::span<const float> checked_row(std::span<const float> row) {
  checked_summary(row);
  return row;
}

double log_normaliser(std::span<const float> row) { return checked_summary(row).log_sum_exp; }

}  // namespace agentkv
