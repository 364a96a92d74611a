#include "engine/constraints.h"

#include <algorithm>
#include <chrono>

#include "core/errors.h"
#include "core/message.h"
#include "engine/job.h"

namespace agentkv {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void fail(const PendingTurn& pending, const std::string& reason) {
  pending.job->fail(ErrorKind::StepFailed,
                    error_text("the constraint ", pending.constrained->constraint->name(), " failed: ", reason));
}

ConstraintTurn turn_of(JobId job, const Branch& branch, const Constrained& constrained) {
  return {.job = job,
          .constraint = constrained.constraint.get(),
          .first = !constrained.began,
          .said = std::span(branch.log).subspan(static_cast<std::size_t>(constrained.told))};
}

void took_turn(const Branch& branch, Constrained& constrained) {
  constrained.began = true;
  constrained.told = branch.length();
}

}  // namespace

std::size_t Constraints::take_turns(std::size_t room) {
  answers_.clear();
  if (pending_.empty()) return 0;
  const auto start = Clock::now();
  for (const auto& driver : drivers()) ask(*driver);
  stats_.constraint_seconds += seconds_since(start);
  return share_out(room);
}

std::vector<std::shared_ptr<ConstraintDriver>> Constraints::drivers() const {
  std::vector<std::shared_ptr<ConstraintDriver>> found;
  for (const PendingTurn& pending : pending_) {
    const auto& driver = pending.constrained->constraint->driver();
    if (std::find(found.begin(), found.end(), driver) == found.end()) found.push_back(driver);
  }
  return found;
}

void Constraints::ask(ConstraintDriver& driver) {
  std::vector<ConstraintTurn> turns;
  std::vector<const PendingTurn*> asked;
  for (const PendingTurn& pending : pending_) {
    if (pending.job->done() || pending.constrained->constraint->driver().get() != &driver) continue;
    ConstraintTurn turn = turn_of(pending.job->id(), *pending.branch, *pending.constrained);
    if (pending.speculator && !pending.speculator->draft.empty()) turn.draft = &pending.speculator->draft;
    turn.max_forced = pending.max_forced;
    turns.push_back(std::move(turn));
    asked.push_back(&pending);
  }
  std::vector<JobId> ended;
  std::erase_if(ended_, [&](const auto& entry) {
    if (entry.first.get() != &driver) return false;
    ended.push_back(entry.second);
    return true;
  });
  try {
    driver.take_turns(turns, ended);
  } catch (const std::exception& error) {
    for (const PendingTurn* pending : asked) fail(*pending, error.what());
    return;
  }
  for (std::size_t i = 0; i < turns.size(); ++i) answer(*asked[i], turns[i]);
}

void Constraints::answer(const PendingTurn& pending, ConstraintTurn& turn) {
  if (!turn.error.empty()) return fail(pending, turn.error);
  took_turn(*pending.branch, *pending.constrained);
  if (turn.complete) return pending.job->complete();
  answers_.push_back({&pending, std::move(turn)});
}

// Forced tokens first, since they are certain: each generation as many as it has or its share of the room. Guesses
// have been cut to the room before.
std::size_t Constraints::share_out(std::size_t room) {
  std::size_t left = room;
  for (std::size_t i = 0; i < answers_.size(); ++i) {
    std::vector<Token>& forced = answers_[i].turn.forced;
    forced.resize(std::min({forced.size(), static_cast<std::size_t>(std::max(answers_[i].turn.max_forced, 0)),
                            left / (answers_.size() - i)}));
    left -= forced.size();
  }
  for (const Answer& answer : answers_) {
    const ConstraintTurn& turn = answer.turn;
    ConstrainedDraft& ride = answer.pending->constrained->ride;
    ride = ConstrainedDraft(turn.forced, turn.draft, turn.allowed, left);
    left -= ride.draft.size() - ride.forced();
    if (turn.draft && ride.draft.empty()) answer.pending->speculator->forbidden();
  }
  return room - left;
}

void Constraints::begin_masks() {
  const std::size_t words = mask_words(vocab_size_);
  std::size_t rows = 0;
  for (const Answer& answer : answers_) rows += 1 + answer.pending->constrained->ride.draft.size();
  if (rows == 0) return;
  masks_.resize(std::max(masks_.size(), rows * words));
  fillings_.clear();
  std::uint32_t* masks = masks_.data();
  for (const Answer& answer : answers_) {
    Constrained& constrained = *answer.pending->constrained;
    const auto& driver = constrained.constraint->driver();
    auto filling = std::find_if(fillings_.begin(), fillings_.end(), [&](const auto& f) { return f.driver == driver; });
    if (filling == fillings_.end()) filling = fillings_.insert(filling, Filling{driver});
    const std::span own(masks, (1 + constrained.ride.draft.size()) * words);
    masks += own.size();
    constrained.masks = own;
    constrained.error.clear();
    const Draft* draft = constrained.ride.draft.empty() ? nullptr : &constrained.ride.draft;
    filling->requests.push_back({.job = answer.turn.job, .draft = draft, .masks = own});
    filling->asked.push_back(&constrained);
  }
  filling_ = true;
  background_.start([this] { fill(); });
}

void Constraints::fill() {
  const auto start = Clock::now();
  for (Filling& filling : fillings_) {
    for (const MaskRequest& request : filling.requests) std::fill(request.masks.begin(), request.masks.end(), 0u);
    std::string reason;
    try {
      filling.driver->fill_masks(filling.requests);
    } catch (const std::exception& error) {
      reason = error.what();
    }
    for (std::size_t i = 0; i < filling.asked.size(); ++i) {
      filling.asked[i]->error = reason.empty() ? std::move(filling.requests[i].error) : reason;
    }
  }
  fill_seconds_ = seconds_since(start);
}

void Constraints::await_masks() {
  if (!filling_) return;
  const auto start = Clock::now();
  background_.wait();
  filling_ = false;
  stats_.constraint_seconds += seconds_since(start);
  stats_.mask_seconds += fill_seconds_;
}

TokenMask Constraints::mask(const Constrained& constrained, std::int32_t node) const {
  if (!constrained.error.empty()) {
    throw ForwardFailed(error_text("the constraint ", constrained.constraint->name(), " failed: ", constrained.error));
  }
  const std::size_t words = mask_words(vocab_size_);
  return constrained.masks.subspan(static_cast<std::size_t>(node + 1) * words, words);
}

bool Constraints::is_complete(JobId job, const Branch& branch, Constrained& constrained) {
  ConstraintTurn turn = turn_of(job, branch, constrained);
  constrained.constraint->driver()->take_turns({&turn, 1}, {});
  took_turn(branch, constrained);
  return turn.error.empty() && turn.complete;
}

void Constraints::ended(JobId job, const Constrained& constrained) {
  if (constrained.began) ended_.emplace_back(constrained.constraint->driver(), job);
}

}  // namespace agentkv
