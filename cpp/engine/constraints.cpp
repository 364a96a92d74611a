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
    turn.max_forced = pending.max_depth;
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

// Each generation has as many forced tokens as it has a use for, or its share of the room.
std::size_t Constraints::share_out(std::size_t room) {
  std::size_t left = room;
  for (std::size_t i = 0; i < answers_.size(); ++i) {
    std::vector<Token>& forced = answers_[i].turn.forced;
    forced.resize(std::min({forced.size(), static_cast<std::size_t>(std::max(answers_[i].turn.max_forced, 0)),
                            left / (answers_.size() - i)}));
    left -= forced.size();
  }
  for (const Answer& answer : answers_) {
    const PendingTurn& pending = *answer.pending;
    pending.constrained->ride = ConstrainedDraft(answer.turn.forced);
    if (pending.speculator) pending.speculator->forced = answer.turn.forced;
  }
  return room - left;
}

void Constraints::grow_drafts(std::size_t room) {
  forget_done();
  const auto start = Clock::now();
  for (const auto& driver : drivers()) ask_to_grow(*driver, room);
  stats_.constraint_seconds += seconds_since(start);
}

void Constraints::ask_to_grow(ConstraintDriver& driver, std::size_t room) {
  std::vector<DraftTurn> turns;
  std::vector<const PendingTurn*> asked;
  for (const Answer& answer : answers_) {
    const PendingTurn& pending = *answer.pending;
    const bool drafted = pending.speculator && !pending.speculator->draft.empty();
    if (!drafted || pending.constrained->constraint->driver().get() != &driver) continue;
    ConstrainedDraft& ride = pending.constrained->ride;
    ride.follow_with(pending.speculator->draft);
    turns.push_back({.job = answer.turn.job, .draft = &ride.draft, .max_added = static_cast<std::int32_t>(room)});
    asked.push_back(&pending);
  }
  if (turns.empty()) return;
  try {
    driver.grow_drafts(turns);
  } catch (const std::exception& error) {
    for (DraftTurn& turn : turns) turn.error = error.what();
  }
  for (std::size_t i = 0; i < turns.size(); ++i) {
    if (!turns[i].error.empty()) {
      fail(*asked[i], turns[i].error);
      continue;
    }
    ConstrainedDraft& ride = asked[i]->constrained->ride;
    ride.grow(turns[i], asked[i]->max_depth);
    asked[i]->speculator->draft = ride.guessed();
  }
}

void Constraints::add_drafts() {
  forget_done();
  for (const Answer& answer : answers_) {
    const PendingTurn& pending = *answer.pending;
    if (pending.speculator) pending.constrained->ride.follow_with(pending.speculator->draft);
  }
}

// A drafter's fault may have ended generations after their turn.
void Constraints::forget_done() {
  std::erase_if(answers_, [](const Answer& answer) { return answer.pending->job->done(); });
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
